"""`current_session()` finds the session of the request that is being handled, in every framework."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import fastmcp.server.dependencies as fastmcp_dependencies
import mcp.server.lowlevel.server as sdk_server
import pytest
from apps import Server, sessions
from clients import Client, http
from environments import needs
from starlette.requests import Request

from mcp_sessions import Session, current_session
from mcp_sessions._session.session import shown_variable
from mcp_sessions.telemetry import current_correlation


def ref() -> str:
    session = current_session()
    return "nobody" if session is None else session.ref


async def test_the_inner_of_two_middlewares_is_the_current_one() -> None:
    """Nested servers each see their own session, or none, and the outer one is back afterwards."""

    async def look(session: Session | None, arguments: dict[str, Any]) -> Any:
        return ref()

    inner = Client(sessions(Server(look=look)))

    async def tool(session: Session | None, arguments: dict[str, Any]) -> Any:
        before, alone = ref(), (await inner.tool("look")).result["content"]
        within = (await inner.tool("look", session=await inner.create())).result["content"]
        return [before, alone, within, ref()]

    outer = Client(sessions(Server(look=tool)))
    before, alone, within, after = (await outer.tool("look", session=await outer.create())).result["content"]
    assert before == after != within
    assert alone == "nobody"


async def test_an_error_of_the_application_leaves_no_session_behind() -> None:
    async def tool(session: Session | None, arguments: dict[str, Any]) -> Any:
        raise LookupError

    client = Client(sessions(Server(fail=tool)))
    session = await client.create()
    with pytest.raises(LookupError):
        await client.tool("fail", session=session)
    assert current_session() is None


@contextmanager
def holding(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@pytest.fixture
def stuck() -> Iterator[None]:
    """A context variable that still holds the session of a connection's first request."""
    with holding(shown_variable, {"mcp_session": SimpleNamespace(ref="stuck", correlation="stuck")}):
        yield


OWN: dict[str, Any] = {"mcp_session": SimpleNamespace(ref="of the request", correlation="c1")}


@pytest.mark.usefixtures("stuck")
@pytest.mark.parametrize(
    ("members", "found"),
    [(OWN, ("of the request", "c1")), ({"mcp_correlation": "c1"}, ("nobody", "c1")), ({}, ("nobody", None))],
)
def test_fastmcp_s_own_request_comes_before_the_context_variable(members: dict[str, Any], found: Any) -> None:
    """For the session, and for the name of the conversation, which may stand beside it."""
    from fastmcp.server.http import _current_http_request as variable

    assert (ref(), current_correlation()) == ("stuck", "stuck")  # type: ignore[comparison-overlap]  # only compared
    with holding(variable, Request(http(**members))):
        assert (ref(), current_correlation()) == found


@needs("mcp<2")
@pytest.mark.usefixtures("stuck")
def test_the_older_sdk_s_own_request_comes_before_the_context_variable() -> None:
    """The newer one has none, since its handlers run in the request's own context."""
    for request, found in ((Request(http(**OWN)), "of the request"), (None, "stuck")):
        with holding(vars(sdk_server)["request_ctx"], SimpleNamespace(request=request)):
            assert ref() == found


@pytest.mark.usefixtures("stuck")
def test_a_framework_that_was_never_imported_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fastmcp_dependencies, sdk_server):
        monkeypatch.delitem(sys.modules, module.__name__)
    assert ref() == "stuck"
    assert fastmcp_dependencies.__name__ not in sys.modules
