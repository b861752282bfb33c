"""A shop without stored carts: each travels with its client, sealed, and any worker can use it.

The model names items and never a cart's number, so it cannot misquote one. Nothing is stored here but the orders; a
restart loses no cart, and one that is given up costs nothing. Such a state is last-write-wins: of two calls at
the same moment one may be lost, which suits a cart that one conversation fills. A stock of items would not be kept so.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples shopping_cart:app
"""

from __future__ import annotations

from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Resolve
from mcp.server.mcpserver.exceptions import ToolError

from mcp_sessions import MCPSessionMiddleware, Session, StateTooLarge, require_session

CurrentSession = Annotated[Session, Resolve(require_session)]
mcp = MCPServer("shop")
orders: list[dict[str, int]] = []


@mcp.tool()
async def add(item: str, session: CurrentSession, quantity: int = 1) -> dict[str, int]:
    """Add an item to the cart; a negative quantity removes it."""
    cart = await show(session)
    cart[item] = cart.get(item, 0) + quantity
    try:
        session.state["cart"] = {name: count for name, count in cart.items() if count > 0}
    except StateTooLarge as error:
        raise ToolError(f"the cart is full: {error}") from error
    return await show(session)


@mcp.tool()
async def show(session: CurrentSession) -> dict[str, int]:
    """Return the cart."""
    cart: dict[str, int] = dict(session.state.get("cart", {}))
    return cart


@mcp.tool()
async def checkout(session: CurrentSession) -> str:
    """Order the content of the cart."""
    cart = await show(session)
    if not cart:
        raise ToolError("the cart is empty")
    orders.append(cart)
    del session.state["cart"]
    return f"order {len(orders)}: {sum(cart.values())} items"


app = MCPSessionMiddleware(
    mcp.streamable_http_app(stateless_http=True),
    keys="env:MCP_SESSIONS_KEYS",
    require={"tools/call": ["add", "show", "checkout"]},
)
