"""The middleware as the benchmarks set it up, sessions that it creates, and the kinds of request that cost differently.

Nothing here imports OpenTelemetry's SDK, since instructions are counted in a process without it.
"""

from typing import Any

from clients import INITIALIZE, SECRET, Client, RealClient, credentials
from starlette.types import ASGIApp

from mcp_sessions import KeyRing, Limits, MCPSessionMiddleware

from . import apps
from .timing import CREATED, ECHOED, PLAIN, REFUSED, Row
from .traffic import Visits, message

RING = KeyRing([SECRET])


def wrap(app: ASGIApp, **options: Any) -> MCPSessionMiddleware:
    """Put the middleware around an application."""
    return MCPSessionMiddleware(app, **{"keys": RING, **options})


async def created(app: ASGIApp, *, modern: bool = True) -> dict[str, str]:
    """Create a session; return its metadata as a client sends it back."""
    return await RealClient(app, modern=modern).create()


async def used(app: ASGIApp, session: dict[str, str]) -> dict[str, str]:
    """Call a tool in a session; return what the client retains of the session afterwards."""
    answer = await Client(app).tool(session=session)
    return {**session, **credentials(answer.session or {})}


def forged(session: dict[str, str]) -> dict[str, str]:
    """Return the session with another signature."""
    signed, _, signature = session["sessionId"].rpartition(".")
    return {"sessionId": f"{signed}.{'B' if signature.startswith('A') else 'A'}{signature[1:]}"}


async def kinds(**options: Any) -> list[Row]:
    """Return a row for each kind of request."""
    app, writer = wrap(apps.trivial, **options), wrap(apps.writing, **options)
    uncached, idle, tracked = (
        wrap(apps.trivial, **options, **mode)
        for mode in ({"limits": Limits(token_cache=0)}, {"idle_timeout": 3600}, {"tracked": True})
    )
    session = await created(app)
    named, with_state = message(session=session), message(session=await used(writer, session))
    create, hello = message("sessions/create", {}), message("initialize", INITIALIZE, modern=False)
    return [
        Row("ours, no session", Visits.of(app, message()), base=PLAIN),
        Row("ours, session", Visits.of(app, named), ECHOED),
        Row("ours, session, state changed", Visits.of(writer, with_state), ECHOED),
        Row("ours, session, no token cache", Visits.of(uncached, named), ECHOED),
        Row("ours, session, idle_timeout", Visits.of(idle, message(session=await created(idle))), ECHOED),
        Row("ours, session, tracked", Visits.of(tracked, message(session=await created(tracked))), ECHOED),
        Row("ours, forged session refused", Visits.of(app, message(session=forged(session))), REFUSED),
        Row("ours, session created", Visits.of(app, create, method="sessions/create"), CREATED, PLAIN),
        Row("ours, initialize", Visits.of(app, hello, method="initialize", modern=False), base=PLAIN),
    ]
