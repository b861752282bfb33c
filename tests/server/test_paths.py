"""Where a request stands to the MCP endpoint, mounted or not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette._utils import get_route_path

from mcp_sessions._server.middleware import Place, place, route_path


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/mcp", "endpoint"),
        ("/mcp/", "endpoint"),
        ("/mcp//", "endpoint"),
        ("/mcp/messages", "below"),
        ("/mcpx", "elsewhere"),
        ("/MCP", "elsewhere"),
        ("/", "elsewhere"),
        ("/other/mcp", "elsewhere"),
        ("", "elsewhere"),
    ],
)
def test_the_endpoint_is_one_path_and_what_lies_below_it(path: str, where: Place) -> None:
    """A trailing slash makes no difference, a longer name does."""
    assert place({"path": path}, "/mcp") == where


def test_without_an_endpoint_every_path_may_be_mcp() -> None:
    """`path=None` looks at JSON everywhere."""
    assert place({"path": "/anything"}, None) == "below"


def test_an_endpoint_at_the_root_has_everything_below_it() -> None:
    """`path="/"` is the empty path without its slash."""
    assert place({"path": "/"}, "") == "endpoint"
    assert place({"path": "/mcp"}, "") == "below"


@pytest.mark.parametrize(
    ("path", "root", "below"),
    [
        ("/api/mcp", "/api", "/mcp"),
        ("/api//mcp", "/api/", "/mcp"),  # what Uvicorn makes of --root-path /api/
        ("/api/mcp", "/api/", "/api/mcp"),
        ("/api", "/api", ""),
        ("/mcp", "/api", "/mcp"),  # a proxy cut the prefix off and says so
        ("/apimcp", "/api", "/apimcp"),
        ("/mcp", "", "/mcp"),
        ("//mcp", "/", "/mcp"),
    ],
)
def test_what_counts_is_the_path_below_the_mount(path: str, root: str, below: str) -> None:
    """As a router inside of us would match it."""
    assert route_path({"path": path, "root_path": root}) == below


def test_a_mounted_endpoint_is_found() -> None:
    """`Mount("/api", app)` in front of `/mcp`."""
    assert place({"path": "/api/mcp", "root_path": "/api"}, "/mcp") == "endpoint"


@given(st.text("/am", max_size=8), st.text("/am", max_size=6))
def test_the_path_is_the_one_that_routing_takes(path: str, root: str) -> None:
    """A router that saw another path than we do would serve what no policy has judged."""
    assert route_path({"path": path, "root_path": root}) == get_route_path({"path": path, "root_path": root})
