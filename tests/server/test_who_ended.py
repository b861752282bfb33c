"""Who ended a session: logs and spans say whether the client, the application, an operator or its expiry did."""

import logging
from typing import Any

import pytest
from apps import Server, sessions
from clients import SECRET, Client, Clock, by, user_of

from mcp_sessions import MCPSessionMiddleware, Principal, Session, Sessions
from mcp_sessions._session.endings import Ending
from mcp_sessions.events import SessionDeleted, SessionEvent
from mcp_sessions.stores import MemoryStore


class Deployment:
    """Two workers with one store, and what they report."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = MemoryStore(clock=self.clock)
        self.reasons: list[str] = []
        self.events: list[SessionEvent] = []
        self.one, self.other = self.worker(), self.worker()

    def worker(self) -> MCPSessionMiddleware:
        async def finish(session: Session | None, arguments: dict[str, Any]) -> str:
            assert session is not None
            await session.end(**arguments)
            return "finished"

        app: MCPSessionMiddleware = sessions(
            Server(finish=finish),
            store=self.store,
            clock=self.clock,
            tracked=True,
            principal=user_of,
            on_end=lambda session, reason: self.reasons.append(reason),
            listen=self.events.append,
        )
        return app

    async def sweep(self) -> None:
        """Let the other worker find what has ended."""
        (sweeper, *_) = self.other._runtime.background_services
        await sweeper.sweep()  # type: ignore[attr-defined]

    @property
    def ended(self) -> SessionDeleted:
        """What the workers reported last."""
        return [event for event in self.events if isinstance(event, SessionDeleted)][-1]


@pytest.fixture
def deployment() -> Deployment:
    return Deployment()


async def test_a_client_ends_its_session(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mcp_sessions")
    client = Client(deployment.one)
    held = await client.create(by("alice"))
    await client.send("sessions/delete", None, by("alice"), session=held)
    assert (deployment.ended.reason, deployment.ended.by, deployment.ended.name) == ("deleted", "client", None)
    assert f"session {deployment.ended.ref} ended: deleted, by client" in caplog.messages


@pytest.mark.parametrize("reason", ["paid", "deleted"])
async def test_the_application_ends_a_session(reason: str, deployment: Deployment) -> None:
    """Even with a reason that clients usually have; it may name the part of it."""
    client = Client(deployment.one)
    held = await client.create(by("alice"))
    await client.tool("finish", by("alice"), session=held, reason=reason, by="fraud check")
    assert (deployment.ended.reason, deployment.ended.by) == (reason, "application")
    assert deployment.ended.name == "fraud check"
    assert deployment.reasons == [reason]


async def test_a_worker_reports_which_operator_ended_a_session(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator's program only writes to the store; `on_end` gets the reason alone."""
    caplog.set_level(logging.INFO, "mcp_sessions")
    await Client(deployment.one).create(by("alice"))
    operator = Sessions(store=deployment.store, keys=SECRET, clock=deployment.clock)
    (record,) = await operator.of()
    assert await operator.end(record.ref, reason="support", by="carol")
    await deployment.sweep()
    assert (deployment.ended.reason, deployment.ended.by, deployment.ended.name) == ("support", "operator", "carol")
    assert deployment.reasons == ["support"]
    assert f"session {record.ref} ended: support, by operator carol" in caplog.messages


async def test_all_sessions_of_a_user_end_by_an_operator(deployment: Deployment) -> None:
    await Client(deployment.one).create(by("alice"))
    operator = Sessions(store=deployment.store, keys=SECRET, clock=deployment.clock)
    await operator.end_all(Principal(subject="alice"), by="carol")
    await deployment.sweep()
    assert (deployment.ended.reason, deployment.ended.by, deployment.ended.name) == ("ended_all", "operator", "carol")


async def test_an_expired_session_ends_by_expiry(deployment: Deployment) -> None:
    await Client(deployment.one).create(by("alice"))
    deployment.clock.now += 365 * 24 * 3600
    await deployment.sweep()
    assert (deployment.ended.by, deployment.ended.name) == ("expiry", None)


@pytest.mark.parametrize(
    "ending",
    [
        Ending("deleted", "client"),
        Ending("deleted", "application"),
        Ending("support", "operator", "carol"),
        Ending("idle", "expiry"),
        Ending("a reason, with commas", "application", "fraud check"),
    ],
)
def test_an_ending_survives_the_store(ending: Ending) -> None:
    assert Ending.from_text(ending.to_text()) == ending


def test_a_usual_ending_is_stored_as_its_reason() -> None:
    """So stores that hold endings of an earlier version are read, too."""
    assert Ending("deleted", "client").to_text() == "deleted"
    assert Ending.from_text("paid") == Ending("paid", "application")
    assert Ending.from_text("paid\x1fsomebody\x1f").by == "application"


def test_a_name_fits_into_a_line_of_the_log() -> None:
    ending = Ending.from_text(Ending("support", "operator", "carol\n\x1b[31m" + "x" * 100).to_text())
    assert ending.name == "carol[31m" + "x" * 55
    assert Ending.from_text(Ending("a\x1fb", "operator", "\n").to_text()) == Ending("a b", "operator")
