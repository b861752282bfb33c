"""The kinds of request that cost differently. They are timed beside others, and their instructions are counted.

Nothing here imports OpenTelemetry's SDK, since the counts are those of a process without it.
"""

from __future__ import annotations

from typing import Any, Final

from . import apps, ours
from .timing import CREATED, ECHOED, PLAIN, REFUSED, Row
from .traffic import LEGACY, Visits, message

_HELLO: Final = {
    "protocolVersion": LEGACY,
    "capabilities": {},
    "clientInfo": {"name": "benchmark", "version": "1.0.0"},
}


async def kinds(**options: Any) -> list[Row]:
    """Return a row for each kind of request to the middleware, in a process without OpenTelemetry's SDK."""
    app, writer = ours.wrap(apps.trivial, **options), ours.wrap(apps.writing, **options)
    uncached, idle, tracked = (
        ours.wrap(apps.trivial, **options, **mode)
        for mode in ({"limits": ours.UNCACHED}, {"idle_timeout": 3600}, {"tracked": True})
    )
    session = await ours.created(app)
    named, with_state = message(session=session), message(session=await ours.used(writer, session))
    create, hello = message("sessions/create", {}), message("initialize", _HELLO, modern=False)
    return [
        Row("ours, no session", Visits.of(app, message()), base=PLAIN),
        Row("ours, session", Visits.of(app, named), ECHOED),
        Row("ours, session, state changed", Visits.of(writer, with_state), ECHOED),
        Row("ours, session, no token cache", Visits.of(uncached, named), ECHOED),
        Row("ours, session, idle_timeout", Visits.of(idle, message(session=await ours.created(idle))), ECHOED),
        Row("ours, session, tracked", Visits.of(tracked, message(session=await ours.created(tracked))), ECHOED),
        Row("ours, forged session refused", Visits.of(app, message(session=ours.forged(session))), REFUSED),
        Row("ours, session created", Visits.of(app, create, method="sessions/create"), CREATED, PLAIN),
        Row("ours, initialize", Visits.of(app, hello, method="initialize", modern=False), base=PLAIN),
    ]
