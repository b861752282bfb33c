"""Handles in sessions that fork, and handles whose holder is an OAuth client."""

from typing import Any

import pytest
from apps import Server, sessions
from clients import SECRET, Client, by, user_of

from mcp_sessions import Principal, Session
from mcp_sessions._server import logs
from mcp_sessions.handles import Handles

HANDLES = Handles(SECRET)


async def keep(session: Session | None, arguments: dict[str, Any]) -> Any:
    assert session is not None
    bound = HANDLES.mint("basket", session=session)
    free = HANDLES.mint("basket")
    return [await HANDLES.keep(session, "basket", one) for one in (bound, free)]


async def list_handles(session: Session | None, arguments: dict[str, Any]) -> Any:
    assert session is not None
    return await HANDLES.of(session)


async def test_fork_does_not_list_handles_of_its_parent_alone() -> None:
    """Nobody gave the fork those that are bound to its parent; unbound ones work in both."""
    client = Client(sessions(Server(keep=keep, list=list_handles), principal=user_of))
    parent = await client.create(by("ann"))
    answer = (await client.tool("keep", by("ann"), session=parent)).result
    bound, free = answer["content"]
    forked = (await client.send("sessions/fork", None, by("ann"), session=parent)).result["session"]
    fork = {name: forked[name] for name in ("sessionId", "state") if name in forked}
    assert (await client.tool("list", by("ann"), session=fork)).result["content"] == [free]
    assert (await client.tool("list", by("ann"), session=parent)).result["content"] == [bound, free]


@pytest.mark.parametrize(
    "client", [Principal("web"), Principal("web", "https://id", "web"), Principal("a", None, "b@clients")]
)
def test_handle_of_a_client_is_logged_once(client: Principal, caplog: pytest.LogCaptureFixture) -> None:
    """All its users can use it; the line says so, with the remedy."""
    logs._warned.clear()
    handles = Handles(SECRET, principal=lambda: client)
    for _ in range(2):
        handles.verify("basket", handles.mint("basket"))
    [line] = [text for text in caplog.messages if "handle" in text]
    assert "which many users may share" in line
    assert "Pass principal= to Handles" in line


def test_handle_of_a_user_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    logs._warned.clear()
    for principal in (Principal("web", None, "ann"), Principal(subject="ann"), None):
        HANDLES.mint("basket", principal=principal)
    assert caplog.messages == []
