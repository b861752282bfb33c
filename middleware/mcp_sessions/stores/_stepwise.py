"""`look_up` in several questions, for stores that cannot ask one."""

from __future__ import annotations

from typing import Any

from .._session.claims import Claims
from .._session.data import Namespace
from ._base import STATE_KEY, Found, SessionStatus


class StepwiseLookUp:
    """Makes `look_up` of the methods `statuses`, `touch` and `read`."""

    async def look_up(
        self: Any, *claims: Claims, state: bool = False, touch: bool = False, idle_timeout: int | None = None
    ) -> list[Found]:
        if touch:
            statuses = [await self.touch(one, idle_timeout=idle_timeout) for one in claims]
        else:
            found = iter(await self.statuses([owned for one in claims for owned in one.by_owner()]))
            statuses = [min([next(found) for _ in one.owners], key=_is_not_ended) for one in claims]
        if not state:
            return [Found(status) for status in statuses]
        places = [Namespace(one.ref, one.expires_at, 0, audience=one.audience) for one in claims]
        states = [await self.read(place, STATE_KEY) for place in places]
        return list(map(Found, statuses, states))


def _is_not_ended(status: SessionStatus) -> bool:
    return status is not SessionStatus.ENDED
