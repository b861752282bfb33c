"""The kinds of request that cost differently. They are timed beside others, and their instructions are counted.

Nothing here imports OpenTelemetry's SDK, since the counts are those of a process that does without it.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.types import ASGIApp

from . import apps, ours
from .timing import CREATED, ECHOED, PLAIN, REFUSED, Row
from .traffic import LEGACY, Visits, message

_CLIENT: Final = {"name": "benchmark", "version": "1.0.0"}
_HELLO: Final = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": _CLIENT}


async def kinds(**options: Any) -> list[Row]:
    """Return a row for each kind of request to the middleware; the options are those of `ours.wrap`."""
    bare, writer = ours.wrap(apps.trivial, **options), ours.wrap(apps.writing, **options)
    session = await ours.created(bare)
    named, held = message(session=session), message(session=await ours.used(writer, session))
    forged = message(session={"sessionId": ours.forged(session["sessionId"])})
    create, hello = message("sessions/create", {}), message("initialize", _HELLO, modern=False)
    fork = message("sessions/fork", {}, session=session)
    rows = [
        Row("ours, no session named", Visits.of(bare, message()), base=PLAIN),
        Row("ours, session", Visits.of(bare, named), ECHOED),
        Row("ours, session, state unchanged", Visits.of(bare, held), ECHOED),
        Row("ours, session, state changed", Visits.of(writer, held), ECHOED),
        Row("ours, forged session refused", Visits.of(bare, forged), REFUSED),
        Row("ours, session created", Visits.of(bare, create, method="sessions/create"), CREATED, PLAIN),
        Row("ours, session forked", Visits.of(bare, fork, method="sessions/fork"), CREATED),
        Row("ours, initialize", Visits.of(bare, hello, method="initialize", modern=False), base=PLAIN),
    ]
    return [*rows, *[await in_mode(mode, apps.trivial, **options) for mode in ours.MODES]]


async def in_mode(mode: str, app: ASGIApp, *, modern: bool = True, **options: Any) -> Row:
    """Return a row for a request in a session, with the middleware in one of its modes."""
    wrapped = ours.wrap(app, mode, **options)
    named = message(session=await ours.created(wrapped, modern=modern), modern=modern)
    return Row(f"ours, session, {mode}", Visits.of(wrapped, named, modern=modern), ECHOED)
