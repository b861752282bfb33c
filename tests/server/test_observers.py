"""Observers that raise: they are logged once, and change nothing for clients, for `on_end` or for other workers."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from apps import Server, sessions, sweeper_of
from clients import DEADLINE, Answer, Client, Clock, call, http
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from streaming import Streaming

from mcp_sessions import Session
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server import logs
from mcp_sessions._server.observers import Observer, Watched
from mcp_sessions._server.options import DAY
from mcp_sessions._server.recording import Listening
from mcp_sessions._session.claims import Claims
from mcp_sessions._session.session import EndedSession
from mcp_sessions.events import RequestRefused, SessionCreated, SessionDeleted, SessionEvent, SessionUsed
from mcp_sessions.stores import MemoryStore
from mcp_sessions.telemetry import Inspector, SessionMetrics, _core


def raising(*_: object, **__: object) -> Any:
    raise LookupError("of an observer")


def cancelled(*_: object) -> Any:
    raise asyncio.CancelledError  # as the result of a future that was cancelled


class Broken(SessionMetrics):
    """Metrics whose every part raises."""

    __call__ = raising
    operation = raising


class BrokenFeed(Inspector):
    """An inspector whose feed raises."""

    def bind(self, feed: Any, *more: Any) -> None:
        super().bind(feed, *more)
        parts = dict.fromkeys(("__call__", "operation", "begin"), raising)
        feed.__class__ = type("Feed", (type(feed),), parts)


class Handler(logging.Handler):
    """A log handler that raises, against the rules for handlers."""

    emit = raising


@pytest.fixture
def broken_handler() -> Iterator[None]:
    handler, logger = Handler(), logging.getLogger("mcp_sessions")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


OBSERVERS: dict[str, dict[str, Any]] = {
    "listen=": {"listen": raising},
    "listen= of a cancelled future": {"listen": cancelled},
    "metrics": {"metrics": Broken},
    "inspector": {"inspector": BrokenFeed},
    "log handler": {},
}


def broken(name: str, **options: Any) -> dict[str, Any]:
    given = {key: value() if isinstance(value, type) else value for key, value in OBSERVERS[name].items()}
    return {**given, **options}


NAMES = pytest.mark.parametrize("name", OBSERVERS)


@NAMES
async def test_clients_notice_nothing(name: str, request: pytest.FixtureRequest) -> None:
    """Create, use, refuse, delete, and the hook at the end."""
    if name == "log handler":
        request.getfixturevalue("broken_handler")
    ran: list[str] = []
    client = Client(sessions(Server(), on_end=lambda session, reason: ran.append(reason), **broken(name)))
    session = await client.create()
    ref = (await client.tool("whoami", session=session)).result["content"]
    assert ref.startswith("ses_")
    assert (await client.tool("whoami", session={"sessionId": "x"})).error["code"] == -32043
    assert (await client.delete(session)).result["resultType"] == "complete"
    assert (await client.tool("whoami", session=session)).error["code"] == -32043
    assert ran == ["deleted"]


class RaisingParts:
    """What an observer uses for one request or one creation; every part of it raises."""

    begin_response = read = refuse = name_session = current = end = raising
    traceparent = None
    trace = property(raising)


class Raising(Observer):
    """An observer whose every part raises, at once or in what it returns."""

    name = "raising"
    created = used = refused = ended = raising

    def __init__(self, *, late: bool) -> None:
        self.late = late

    def watch(self, request: Watched) -> Any:
        return RaisingParts() if self.late else raising()

    def creating(self, claims: Claims) -> Any:
        return RaisingParts() if self.late else raising()


@pytest.mark.parametrize("late", [False, True], ids=["at once", "in its parts"])
async def test_raising_observer_is_logged_once(
    late: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part of an observer is called by itself, so another one learns everything."""
    monkeypatch.setattr(_core, "_failed", set())
    facts, app = list[SessionEvent](), sessions(Server())
    app._runtime.observers.__init__(Raising(late=late), Listening(facts.append))  # type: ignore[misc]
    client = Client(app)
    for _ in range(2):
        session = await client.create()
        assert (await client.tool("whoami", session=session)).result["content"].startswith("ses_")
        assert (await client.tool("whoami", session={"sessionId": "x"})).error["code"] == -32043
        assert (await call(app, http("GET", headers=[(b"mcp-session-id", b"x")]))).status == 202
        assert (await client.delete(session)).result["resultType"] == "complete"
    kinds = [SessionCreated, SessionUsed, RequestRefused, SessionDeleted]
    assert [type(fact) for fact in facts] == kinds * 2
    assert caplog.text.count("raising raised LookupError: the event is lost there") == 1


async def test_store_that_fails_outside_of_sessions_is_answered_alike() -> None:
    """Observers see a request without a session, too, and change none of its answers."""

    async def fails(session: Session | None, arguments: dict[str, Any]) -> None:
        raise StoreUnavailable("fault")

    for options in ({}, {"metrics": SessionMetrics()}):
        with pytest.raises(StoreUnavailable):
            await Client(sessions(Server(fails=fails), **options)).tool("fails")


@NAMES
async def test_http_delete_and_handshake_notice_nothing(name: str, request: pytest.FixtureRequest) -> None:
    if name == "log handler":
        request.getfixturevalue("broken_handler")
    client = Client(sessions(Server(), **broken(name)), modern=False)
    header = await client.initialize()
    assert (await client.tool("whoami", header)).result["content"].startswith("ses_")
    assert (await call(client.app, http("DELETE", headers=[header]))).status == 200
    assert (await client.tool("whoami", header)).status == 404


@NAMES
async def test_sweeps_go_on(name: str, request: pytest.FixtureRequest) -> None:
    """Each expired session is finished at once, not after its lease."""
    if name == "log handler":
        request.getfixturevalue("broken_handler")
    clock, ran = Clock(), list[str]()

    def on_end(session: EndedSession, reason: str) -> None:
        ran.append(reason)

    app = sessions(Server(), clock=clock, tracked=True, on_end=on_end, **broken(name))
    client = Client(app)
    for _ in range(3):
        await client.create()
    clock.now += 30 * DAY
    await sweeper_of(app).sweep()
    assert ran == ["expired"] * 3


@NAMES
async def test_calls_are_still_ended_from_elsewhere(name: str, request: pytest.FixtureRequest) -> None:
    """Polling goes on after an observer has raised: the second session is found, too."""
    if name == "log handler":
        request.getfixturevalue("broken_handler")
    store, server = MemoryStore(), Streaming()
    here, there = sessions(server, store=store, **broken(name)), sessions(server, store=store)
    here._runtime.streams._interval = 0.01
    client, elsewhere, answers = Client(here, modern=False), Client(there, modern=False), list[Answer]()

    async def work(session: Any) -> None:
        answers.append(await client.tool("work", session=session))

    for _ in range(2):
        server.began, server.go, session = anyio.Event(), anyio.Event(), await client.create()
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as group:
                group.start_soon(work, session)
                await server.began.wait()
                await elsewhere.delete(session)
                while here._runtime.streams._open:
                    await checkpoint()
                server.go.set()
    assert [answer.error["code"] for answer in answers] == [-32043] * 2


async def test_each_observer_is_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the class of its error; one that works gets every event."""
    facts: list[SessionEvent] = []

    def listen(fact: SessionEvent) -> None:
        facts.append(fact)
        raise LookupError

    monkeypatch.setattr(_core, "_failed", set(), raising=False)
    client = Client(sessions(Server(), listen=listen))
    for _ in range(3):
        await client.delete(await client.create())
    assert len([fact for fact in facts if isinstance(fact, SessionDeleted)]) == 3
    assert [text for text in caplog.messages if "LookupError" in text] == [
        "listen= raised LookupError: the event is lost there, and requests go on; correct it (logged once)"
    ]


@pytest.mark.parametrize("method", ["on_start", "on_end"])
async def test_span_processor_that_raises_changes_no_answer(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Creation, call, refusal and deletion."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(type("P", (SpanProcessor,), {method: raising})())
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    client = Client(sessions(Server()))
    session = await client.create()
    assert (await client.tool("whoami", session=session)).result["content"].startswith("ses_")
    assert (await client.delete(session)).result["resultType"] == "complete"
    assert (await client.tool("whoami", session=session)).error["code"] == -32043


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_the_process_passes_observers_and_handlers(stop: type[BaseException]) -> None:
    def stopping(*_: object) -> None:
        raise stop

    with pytest.raises(stop):
        _core.call_observer("listen=", stopping)

    class Stopping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise stop

    handler = Stopping()
    logger = logging.getLogger("mcp_sessions")
    logger.addHandler(handler)
    try:
        with pytest.raises(stop):
            logs._handle(logger.makeRecord("mcp_sessions", logging.ERROR, __file__, 1, "gone", (), None))
    finally:
        logger.removeHandler(handler)
