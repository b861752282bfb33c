"""`current_session()` finds the session of the request that is being handled, in every framework."""

from __future__ import annotations

import sys
from contextvars import ContextVar, Token
from types import SimpleNamespace
from typing import Any

import fastmcp.server.dependencies as fastmcp_dependencies
import mcp.server.lowlevel.server as sdk_server
import pytest
from apps import Server, sessions
from clients import Client, http
from environments import needs
from starlette.requests import Request
from starlette.types import Scope

from mcp_sessions import Correlation, Session, current_correlation, current_session
from mcp_sessions._session.session import shown_variable


def ref() -> str:
    session = current_session()
    return "nobody" if session is None else session.ref


async def test_the_inner_of_two_middlewares_is_the_current_one() -> None:
    """Nested servers each see their own session, and the outer one is back afterwards."""

    async def look(session: Session | None, arguments: dict[str, Any]) -> Any:
        return ref()

    inner = Client(sessions(Server(look=look)))

    async def tool(session: Session | None, arguments: dict[str, Any]) -> Any:
        before = ref()
        within = (await inner.tool("look", session=await inner.create())).result["content"]
        return [before, within, ref()]

    outer = Client(sessions(Server(look=tool)))
    before, within, after = (await outer.tool("look", session=await outer.create())).result["content"]
    assert before == after != within


async def test_an_error_of_the_application_leaves_no_session_behind() -> None:
    async def tool(session: Session | None, arguments: dict[str, Any]) -> Any:
        raise LookupError

    client = Client(sessions(Server(fail=tool)))
    session = await client.create()
    with pytest.raises(LookupError):
        await client.tool("fail", session=session)
    assert current_session() is None


@pytest.fixture
def stuck() -> Any:
    """A context variable that still holds the session of a connection's first request."""
    token: Token[Any] = shown_variable.set({"mcp_session": SimpleNamespace(ref="stuck", correlation=None)})
    yield
    shown_variable.reset(token)


async def scope_in(variable: ContextVar[Any], value: Any) -> str:
    token = variable.set(value)
    try:
        return ref()
    finally:
        variable.reset(token)


SCOPE: Scope = http(mcp_session=SimpleNamespace(ref="of the request", correlation=None))


@pytest.mark.usefixtures("stuck")
async def test_fastmcp_s_own_request_comes_before_the_context_variable() -> None:
    from fastmcp.server.http import _current_http_request as variable

    assert ref() == "stuck"
    assert await scope_in(variable, Request(SCOPE)) == "of the request"
    assert await scope_in(variable, Request(http())) == "nobody"


@needs("mcp<2")
@pytest.mark.usefixtures("stuck")
async def test_the_older_sdk_s_own_request_comes_before_the_context_variable() -> None:
    variable: Any = vars(sdk_server)["request_ctx"]
    assert await scope_in(variable, SimpleNamespace(request=Request(SCOPE))) == "of the request"
    assert await scope_in(variable, SimpleNamespace(request=None)) == "stuck"


@needs("mcp>=2")
@pytest.mark.usefixtures("stuck")
def test_the_newer_sdk_leaves_it_to_the_context_variable() -> None:
    """It has no such variable, and its handlers run in the request's own context."""
    assert not hasattr(sdk_server, "request_ctx")
    assert ref() == "stuck"


@pytest.mark.usefixtures("stuck")
def test_a_framework_that_was_never_imported_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fastmcp_dependencies, sdk_server):
        monkeypatch.delitem(sys.modules, module.__name__)
    assert ref() == "stuck"
    assert fastmcp_dependencies.__name__ not in sys.modules


@pytest.mark.parametrize("members", [{"mcp_session": SimpleNamespace(correlation="c1")}, {"mcp_correlation": "c1"}])
async def test_the_name_of_a_conversation_is_found_as_the_session_is(members: dict[str, Any]) -> None:
    """On the session, or on the scope where there is none; a variable that is stuck says nothing."""
    from fastmcp.server.http import _current_http_request as variable

    stuck: Token[Any] = shown_variable.set({"mcp_correlation": Correlation("stuck", "stuck")})
    token = variable.set(Request(http(**members)))
    try:
        assert current_correlation() == "c1"  # type: ignore[comparison-overlap]  # only compared
    finally:
        variable.reset(token)
        shown_variable.reset(stuck)
