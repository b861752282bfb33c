"""`require=` on resources: rules by URI hold for fixed ones, and one on what a template serves does not start."""

from __future__ import annotations

from collections.abc import Callable
from traceback import format_exception
from typing import Any

import anyio
import pytest
from clients import SECRET, RealClient, lifespan

from integration.servers import FRAMEWORKS, Cell, http_app, server_class
from mcp_sessions import MCPSessionMiddleware, add_sessions

PLACED: dict[str, Callable[..., Any]] = {"outside": MCPSessionMiddleware, "at the route": add_sessions}


async def count(number: int) -> str:
    return str(number)


async def one() -> str:
    return "1"


def app(framework: str, *resources: str) -> Any:
    """A server with templates, which coerce a number, and with fixed resources."""
    mcp = server_class(framework)("s")
    for uri in resources:
        mcp.resource(uri)(count if "{" in uri else one)
    return http_app(mcp, Cell(framework, modern=False, stateful=False, json=True))


async def start(app: Any) -> str | None:
    """Start and stop an application; return why it does not start."""
    try:
        with anyio.fail_after(60):
            async with lifespan(app):
                return None
    except Exception as error:  # noqa: BLE001  # a group of them
        return "".join(format_exception(error))


@pytest.mark.parametrize("placed", PLACED.values(), ids=PLACED)
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("template", "uri", "starts"),
    [
        ("res://cart/{number}", "res://cart/7", False),
        ("res://CART/{number}", "res://cart/7?x=1", False),
        ("res://shop/café/{number}", "res://shop/caf%C3%A9/7", False),
        ("res://{number}/cart", "res://7/cart", False),
        ("res://cart/{number}", "res://shop/7", True),
        ("res://cart/{number}", "res://cart/7/items", True),
    ],
)
async def test_a_rule_that_names_an_instance_of_a_template_does_not_start(
    template: str, uri: str, starts: bool, framework: str, placed: Callable[..., Any]
) -> None:
    """The template would serve it as `07`, `+7` or `7%20`, too, past the rule."""
    wrapped = placed(app(framework, template, "res://shop/7"), keys=SECRET, require={"resources/read": [uri]})
    fault = await start(wrapped)
    assert (fault is None) is starts
    if fault is not None:
        assert repr(template) in fault
        assert "Write True" in fault


@pytest.mark.parametrize("placed", PLACED.values(), ids=PLACED)
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("require", [{"resources/read": True, "tools/call": ["cart"]}, {"resources/read"}, "always"])
async def test_rules_that_name_no_uri_hold_for_templates_too(
    require: Any, framework: str, placed: Callable[..., Any]
) -> None:
    """Every spelling needs a session."""
    wrapped = placed(app(framework, "res://cart/{number}"), keys=SECRET, require=require)
    with anyio.fail_after(60):
        async with lifespan(wrapped):
            for uri in ("res://cart/7", "res://cart/07", "res://cart/+7", "res://cart/7%20"):
                reply = await RealClient(wrapped).send("resources/read", {"uri": uri})
                assert reply.json["error"]["code"] == -31044
