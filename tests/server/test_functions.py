"""Functions that applications pass as options: each may be async, or is refused if it is."""

import asyncio
import gc
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest
from apps import Server, sessions
from clients import SECRET, Client, Clock, user_of

from mcp_sessions import ConfigurationError, Principal, Sessions, Telemetry
from mcp_sessions._server import logs
from mcp_sessions.client import with_sessions
from mcp_sessions.handles import Handles
from mcp_sessions.stores import MemoryStore, PostgresStore, RedisStore, SQLiteStore

pytestmark = pytest.mark.usefixtures("nothing_is_left_unawaited")


@pytest.fixture
def nothing_is_left_unawaited() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(one.message) for one in caught if "never awaited" in str(one.message)] == []


class Async:
    async def __call__(self, *_: Any) -> Any:
        return None

    async def method(self, *_: Any) -> Any:
        return None


async def plain(*_: Any) -> Any:
    return None


async def generating(*_: Any) -> Any:
    yield None


def iterating(*_: Any) -> Any:
    yield None


def unseen(function: Any) -> Any:
    """A plain function that returns what another one does, as a decorator without `wraps` makes it."""

    def called(*arguments: Any) -> Any:
        return function(*arguments)

    return called


NEVER_RUN: dict[str, Any] = {"async generator": generating, "generator": iterating}
ASYNC: dict[str, Any] = {
    "function": plain,
    "object": Async(),
    "method": Async().method,
    "partial": partial(plain, 1),
    "partial of object": partial(partial(Async(), 1), 2),
}
PLAIN_ONLY: dict[str, Callable[..., Any]] = {
    "principal": lambda function: sessions(Server(), principal=function),
    "require": lambda function: sessions(Server(), require=function),
    "clock": lambda function: sessions(Server(), clock=function),
    "telemetry.listen": lambda function: Telemetry(listen=function),
    "telemetry.redact": lambda function: Telemetry(redact=function),
    "telemetry.user": lambda function: Telemetry(user=function),
    "Handles.principal": lambda function: Handles(SECRET, principal=function),
    "Handles.clock": lambda function: Handles(SECRET, clock=function),
    "Sessions.clock": lambda function: Sessions(store=MemoryStore(), clock=function),
    "MemoryStore.clock": lambda function: MemoryStore(clock=function),
    "SQLiteStore.clock": lambda function: SQLiteStore("sessions.db", clock=function),
    "RedisStore.clock": lambda function: RedisStore("redis://127.0.0.1", clock=function),
    "PostgresStore.clock": lambda function: PostgresStore("postgresql://127.0.0.1", clock=function),
}
HOOKS = "on_create", "on_end"


@pytest.mark.parametrize("kind", [*ASYNC, *NEVER_RUN])
def test_async_functions_are_refused_where_nothing_awaits_them(kind: str) -> None:
    accepted = []
    for option, make in PLAIN_ONLY.items():
        try:
            make({**ASYNC, **NEVER_RUN}[kind])
        except ConfigurationError as error:
            assert "takes a plain function" in str(error)
            assert f"{option.rpartition('.')[2]}=" in str(error)
        else:
            accepted.append(option)
    assert accepted == []


@pytest.mark.parametrize("option", HOOKS)
def test_generators_are_no_hooks(option: str) -> None:
    """Nothing iterates them, so their bodies would never run; an async function is awaited."""
    for hook in ASYNC.values():
        sessions(Server(), **{option: hook})
    for hook in NEVER_RUN.values():
        with pytest.raises(ConfigurationError, match=f"{option}= takes a plain or an async function"):
            sessions(Server(), **{option: hook})


@pytest.mark.parametrize(
    "returned", [plain, lambda: "1800000000", lambda: True, lambda: None, lambda: float("nan"), Async()]
)
def test_clock_returns_a_finite_number(returned: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"clock= returned .*; it must return Unix seconds"):
        sessions(Server(), clock=unseen(returned))


@pytest.mark.parametrize("answer", [plain, generating, iterating])
async def test_coroutine_of_a_rule_is_no_answer(answer: Any) -> None:
    client = Client(sessions(Server(), require=lambda request: answer()))
    with pytest.raises(TypeError, match="must return True or False, not"):
        await client.tool()
    assert client.app.app.seen == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("hook", [generating, iterating])
async def test_hook_that_returns_a_generator_fails(hook: Any) -> None:
    client = Client(sessions(Server(), on_create=lambda *_: hook()))
    assert (await client.send("sessions/create")).error["code"] == -32603


async def test_listener_that_returns_a_coroutine_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The client gets its answer; the coroutine is closed, since nothing awaits it."""
    logs._warned.clear()
    client = Client(sessions(Server(), listen=unseen(plain)))
    assert "sessionId" in await client.create()
    await client.tool("whoami", session=await client.create())
    [line] = [text for text in caplog.messages if "listen=" in text]
    assert "coroutine" in line
    assert "plain function" in line


class User:
    """As an authentication middleware of one's own may leave it."""

    id = "ann"


def task(*_: Any) -> Any:
    return asyncio.get_running_loop().create_future()


NOBODY: dict[str, Any] = {
    "object": lambda _: User(),
    "class": lambda _: User,
    "claims": lambda _: {"sub": "ann", "iat": 1},
    "list": lambda _: ["ann"],
    "tuple": lambda _: ("app", None, "ann"),
    "bytes": lambda _: b"ann",
    "int": lambda _: 7,
    "zero": lambda _: 0,
    "true": lambda _: True,
    "false": lambda _: False,
    "coroutine": lambda _: plain(),
    "async generator": lambda _: generating(),
    "generator": lambda _: iterating(),
}


@pytest.mark.parametrize("kind", NOBODY)
@pytest.mark.parametrize("own", [False, True])
async def test_value_that_identifies_nobody_is_refused(kind: str, own: bool) -> None:
    """At the first request, whatever it is about; the server does not see it."""
    server = Server()
    app = sessions(server, principal=NOBODY[kind], **({"transport.per_user": True} if own else {}))
    for client in (Client(app), Client(app, modern=False)):
        for method in ("tools/call", "sessions/create", "tools/list", "initialize"):
            with pytest.raises(ConfigurationError, match=r"principal= returned .*; return .*None for an anonymous"):
                await client.send(method, {"name": "whoami"})
    assert server.seen == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_future_identifies_nobody() -> None:
    server = Server()
    with pytest.raises(ConfigurationError, match=r"principal= returned .*Future.*must be a plain function"):
        await Client(sessions(server, principal=task)).tool()
    assert server.seen == []


async def test_function_that_fails_leaves_sessionless_requests_alone() -> None:
    """It may fail for a caller that the wrapped server answers with 401."""
    client = Client(sessions(Server(), principal=lambda scope: scope["caller"]))
    assert (await client.tool()).result["content"] == "nobody"
    with pytest.raises(KeyError):
        await client.create()


async def test_answers_of_functions_that_fit_count() -> None:
    """An object with a plain `__call__`, a partial, and a class whose instances are the answer."""

    class Rule:
        def __call__(self, request: Any) -> bool:
            return bool(request.target == "remember")

    client = Client(sessions(Server(), require=Rule(), principal=partial(user_of), clock=partial(Clock())))
    assert (await client.tool()).result["content"] == "nobody"
    assert (await client.tool("remember")).error["code"] == -31044


async def test_handles_need_a_caller_that_is_identified() -> None:
    """An explicit one, too; a text is a user, as for the middleware."""
    for wrong in (User(), {"sub": "ann"}, "", 7):
        handles = Handles(SECRET, principal=unseen(lambda value=wrong: value))
        with pytest.raises(ConfigurationError, match="principal= returned"):
            handles.mint("basket")
    with pytest.raises(ConfigurationError, match="must be a plain function"):
        Handles(SECRET, principal=unseen(plain)).mint("basket")
    named: Any = Handles(SECRET, principal=unseen(lambda: "ann"))
    assert named.verify("basket", Handles(SECRET).mint("basket", principal=Principal(subject="ann")))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_function_of_a_client_returns_a_transport() -> None:
    """A coroutine is none, nor is an async function accepted in its place."""
    for function in (*ASYNC.values(), *NEVER_RUN.values()):
        with pytest.raises(ConfigurationError, match="transport= takes a plain function"):
            with_sessions(function)
    for returned in (plain, lambda: None):
        with pytest.raises(ConfigurationError, match=r"returned .*; with_sessions takes"):
            await with_sessions(unseen(returned)).__aenter__()


@asynccontextmanager
async def opened(*_: Any) -> Any:
    yield


@contextmanager
def entered(*_: Any) -> Any:
    yield


LOST: dict[str, Callable[..., Any]] = {
    "asynchronous context manager": lambda *_: opened(),
    "context manager": lambda *_: entered(),
    "function": lambda *_: partial(plain),
    "class": lambda *_: User,
    "future": lambda *_: Future[None](),
}


@pytest.mark.parametrize("kind", LOST)
async def test_hook_that_returns_what_nothing_runs_fails(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the option and the type."""
    refused = await Client(sessions(Server(), on_create=LOST[kind])).send("sessions/create")
    assert refused.error["code"] == -32603
    type_of = type(LOST[kind]()).__name__
    assert f"on_create= returned a value of type {type_of}" in caplog.text
    client = Client(sessions(Server(), on_end=LOST[kind]))
    await client.delete(await client.create())
    assert f"on_end= returned a value of type {type_of}" in caplog.text


async def test_hook_may_return_what_is_no_work() -> None:
    for value in (7, "text", {"a": 1}, False):
        assert "sessionId" in await Client(sessions(Server(), on_create=lambda *_, value=value: value)).create()


@pytest.mark.parametrize("kind", LOST)
async def test_listener_that_returns_what_nothing_runs_is_logged(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    logs._warned.clear()
    client = Client(sessions(Server(), listen=LOST[kind]))
    await client.tool("whoami", session=await client.create())
    [line] = [text for text in caplog.messages if "listen=" in text]
    assert type(LOST[kind]()).__name__ in line


@pytest.mark.parametrize("option", [name for name in PLAIN_ONLY if name.endswith("clock")])
@pytest.mark.parametrize("now", [0, 86_400.5, 1_800_000_000_000, 1_800_000_000 * 10**9, 1_577_836_799, 4_102_444_801])
def test_clock_returns_seconds_of_this_century(option: str, now: float) -> None:
    """Neither those since the machine started, nor milliseconds or nanoseconds."""
    with pytest.raises(
        ConfigurationError, match=r"clock= returned .*; it must return Unix seconds, as time\.time does"
    ):
        PLAIN_ONLY[option](lambda: now)
