"""Handles as types of tool arguments: with real servers of every framework, and real tokens."""

import logging
import re
import subprocess
import sys
from itertools import product
from typing import Annotated, Any, Final

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from mcp_sessions import ConfigurationError, add_sessions
from mcp_sessions.handles import Handle, HandleOf, Handles, _Installed

from .servers import CELLS, KEYS, Cell, Hall, bearer, made, running

HANDLES: Final = Handles(KEYS, lifetimes={"basket": 86_400}).install()


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handles above, whatever other tests of this process have installed, and after each test those again."""
    monkeypatch.setattr(_Installed, "type", staticmethod(HANDLES.type))


Basket = Annotated[str, HANDLES.type("basket")]

UNKNOWN = "not one of your basket handles: copy the handle again exactly as it was given, or create a new basket"


def shown(name: str) -> str:
    """An id. Both forms are strings to a type checker, which the gate runs over this file."""
    return f"id {name}"


async def create(kind: str) -> str:
    """A new handle."""
    return HANDLES.mint(kind)


async def short(basket: HandleOf["basket"]) -> str:  # noqa: F821  # a word, which is no name and no annotation
    """The id, by the short form."""
    return shown(basket)


async def long(basket: Basket) -> str:
    """The id, by the long form."""
    return shown(basket)


async def whole(basket: Annotated[Handle, HANDLES.type("basket")]) -> str:
    """All that a handle says."""
    return f"id {basket.id} of {basket.text}"


async def perhaps(basket: Basket | None = None) -> str:
    """A handle that may be left out."""
    return f"id {basket}"


async def every(baskets: list[Basket]) -> str:
    """Several handles."""
    return f"ids {' '.join(baskets)}"


def server(cell: Cell, hall: Hall | None = None, *, authenticated: bool = False) -> Any:
    return made(cell, create, short, long, whole, perhaps, every, authenticated=authenticated)


def with_sessions(cell: Cell, hall: Hall, **options: Any) -> Any:
    return add_sessions(server(cell, hall, **options), keys=KEYS)


every_cell = pytest.mark.parametrize(
    "cell", [cell for cell in CELLS if cell.stateful is not cell.modern and not cell.json], ids=str
)


@every_cell
async def test_a_tool_gets_the_verified_id(cell: Cell) -> None:
    """In each form, in a list, or left out where it may be; and models are told what a handle looks like."""
    async with running(cell, server) as up:
        client = await up.connected()
        tools = (await client.send("tools/list")).result["tools"]
        basket = await client.call("create", kind="basket")
        name = HANDLES.verify("basket", basket)
        for tool in ("long", "short", "perhaps"):
            assert await client.call(tool, basket=basket) == f"id {name}"
        assert await client.call("whole", basket=basket) == f"id {name} of {basket}"
        assert await client.call("every", baskets=[basket, basket]) == f"ids {name} {name}"
        assert await client.call("perhaps") == "id None"
    schemas = {tool["name"]: tool["inputSchema"]["properties"].get("basket") for tool in tools}
    for tool in ("long", "short", "whole"):
        assert schemas[tool]["type"] == "string"
        assert schemas[tool]["description"] == "The handle of a basket, copied exactly as it was given"
        assert re.search(schemas[tool]["pattern"], basket)
    assert schemas["long"]["pattern"] == schemas["perhaps"]["anyOf"][0]["pattern"]


@every_cell
async def test_a_wrong_handle_is_the_tools_error_and_says_what_to_do(
    cell: Cell, caplog: pytest.LogCaptureFixture
) -> None:
    """In words for the model, and with nothing of what was sent: not in the error, not in any log."""
    logging.getLogger("fastmcp").addHandler(caplog.handler)
    async with running(cell, server) as up:
        client = await up.connected()
        basket, browser = [await client.call("create", kind=kind) for kind in ("basket", "browser")]
        wrong = [
            (browser, "not a basket handle: it is a browser handle"),
            (basket[:-1], "this basket handle was cut short: copy all 55 characters of it"),
            (f"`{basket}`", "not a basket handle as it stands: send it alone, with no spaces, quotes or punctuation"),
            (basket[:-1] + ("1" if basket[-1] == "0" else "0"), UNKNOWN),
            ([basket], "not a basket handle: a handle is a string"),
        ]
        for tool, (sent, words) in product(("long", "short", "whole", "perhaps"), wrong):
            reply = await client.tool(tool, basket=sent)
            assert reply.result["isError"]
            assert words in reply.text
            assert not any(handle[10:40] in reply.text for handle in (basket, browser))
    logging.getLogger("fastmcp").removeHandler(caplog.handler)
    assert not any(handle[10:40] in caplog.text for handle in (basket, browser))


@every_cell
@pytest.mark.parametrize("make", [server, with_sessions])
async def test_what_one_user_was_given_no_other_can_use(cell: Cell, make: Any) -> None:
    """By their bearer tokens, in a session of the owner's or in none: not another user, nor another client."""
    async with running(cell, make, authenticated=True) as up:
        ann, bob, elsewhere = [await up.connected(**bearer(token)) for token in ("ann", "bob", "ann-elsewhere")]
        sessions = [None] if make is server else [await ann.create(), await ann.create(), None]
        basket, of_bob = await ann.call("create", sessions[0], kind="basket"), await bob.call("create", kind="basket")
        found = [await ann.call("long", held, basket=basket) for held in sessions]
        assert set(found) == {found[0]}
        assert found[0].startswith("id ")
        assert (await bob.call("long", basket=of_bob)).startswith("id ")
        for client, handle in ((bob, basket), (elsewhere, basket), (ann, of_bob)):
            assert UNKNOWN in await client.call("long", basket=handle)


def test_the_short_form_is_the_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It means the handles that were installed last, when it was written; without any it says what to do."""
    handle = HANDLES.mint("basket")
    here = TypeAdapter(HandleOf["basket"])
    Handles(KEYS, audience="elsewhere").install()
    there = TypeAdapter(HandleOf["basket"])
    assert here.validate_python(handle) == HANDLES.verify("basket", handle)
    with pytest.raises(ValidationError, match="not one of your basket handles"):
        there.validate_python(handle)
    monkeypatch.setattr(_Installed, "type", None)
    with pytest.raises(ConfigurationError, match=re.escape('HandleOf["basket"] needs handles: call Handles(')):
        HandleOf["basket"]


def test_what_stands_beside_must_be_able_to_hold_a_handle() -> None:
    with pytest.raises(ConfigurationError, match=r'handles.type\("basket"\) annotates str or Handle, not'):
        TypeAdapter(Annotated[int, HANDLES.type("basket")])


class Order(BaseModel):
    """A model with a handle in it."""

    basket: Annotated[str, HANDLES.type("basket"), Field(description="What is bought")]


def test_a_handle_may_be_a_field_of_a_model() -> None:
    """From Python and from JSON; the reason is the error's type, and the application's description counts."""
    basket = HANDLES.mint("basket")
    name = HANDLES.verify("basket", basket)
    assert Order.model_validate({"basket": basket}).basket == name
    assert Order.model_validate_json(f'{{"basket": "{basket}"}}').basket == name
    assert Order.model_json_schema()["properties"]["basket"]["description"] == "What is bought"
    with pytest.raises(ValidationError) as refused:
        Order.model_validate({"basket": HANDLES.mint("browser")})
    (error,) = refused.value.errors()
    assert (error["type"], error["loc"]) == ("handle_other_type", ("basket",))
    assert error["msg"] == "not a basket handle: it is a browser handle"
    assert "input_value=<not shown>" in str(refused.value)


def test_pydantic_is_imported_for_who_uses_it_alone() -> None:
    program = (
        "import sys; from mcp_sessions.handles import Handles; "
        f"h = Handles({KEYS!r}); h.install(); h.type('basket'); h.verify('basket', h.mint('basket')); "
        "print(sorted({'pydantic', 'pydantic_core', 'mcp', 'fastmcp'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == "[]\n"
