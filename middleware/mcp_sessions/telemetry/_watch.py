"""`Watch`: facts and messages as events of a worker's feed.

Of a client's words an event has the client's name, the method and the tool alone, as a span does.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from .._protocol.jsonrpc import Message
from .._session.claims import Claims
from .._session.events import Fact, RequestRefused, SessionCreated, SessionDeleted
from . import _feed as events
from ._attributes import target_of
from ._feed import Feed
from ._outcome import Outcome

_EVENTFUL: Final = frozenset(
    {"session/create", "session/delete", "sessions/create", "sessions/delete", "sessions/fork", "terminate"}
)
"""The methods whose success is a fact already: the draft's, SEP-1364's and our own."""


class Watch:
    """The listener that writes to a feed."""

    def __init__(self, feed: Feed) -> None:
        self._feed: Final = feed
        self._numbers: Final = count(1)
        self._running: Final[dict[int, events.Began]] = {}

    def __call__(self, fact: Fact) -> None:
        """Send one fact, unless it belongs to a message, which is sent itself."""
        feed, now = self._feed, self._feed.clock()
        if isinstance(fact, SessionCreated):
            feed.send(
                events.Created(worker=feed.worker, ref=fact.ref, at=now, expires_at=fact.expires_at, parent=fact.parent)
            )
        elif isinstance(fact, SessionDeleted):
            feed.send(events.Ended(worker=feed.worker, ref=fact.ref, at=now, reason=fact.reason, seconds=fact.seconds))
        elif isinstance(fact, RequestRefused) and fact.method is None:
            feed.send(events.Refused(worker=feed.worker, ref=fact.ref, at=now, reason=fact.reason))

    def begin(self, message: Message, session: Claims | None, *, is_live: bool) -> None:
        """Send that a message is being handled, and its session if it lives and this worker has not seen it before."""
        feed, now = self._feed, self._feed.clock()
        ref, client = (None, None) if session is None else (session.ref, session.client)
        name = " ".join(filter(None, [message.label, target_of(message)]))
        call = f"{feed.worker}/{next(self._numbers)}"
        began = events.Began(worker=feed.worker, call=call, ref=ref, at=now, name=name, client=client)
        self._running[id(message)] = began
        if message.method in _EVENTFUL:
            return
        if session is not None and is_live and not feed.knows(session.ref):
            feed.send(
                events.LiveSession(
                    worker=feed.worker,
                    ref=session.ref,
                    at=now,
                    created_at=session.issued_at,
                    expires_at=session.expires_at,
                    client=client,
                    parent=session.parent,
                )
            )
        feed.send(began)

    def operation(
        self,
        message: Message,
        version: str | None,  # noqa: ARG002  # not part of the event
        outcome: Outcome,
        *,
        seconds: float,
        ref: str | None,
    ) -> None:
        """Send one message that has been handled, unless a fact was sent for it."""
        began = self._running.pop(id(message))
        if message.method in _EVENTFUL and outcome.error is None:
            return
        self._feed.send(
            events.Call(
                worker=began.worker,
                call=began.call,
                ref=ref,
                at=began.at,
                name=began.name,
                client=began.client,
                seconds=seconds,
                error=outcome.error,
                reason=outcome.reason,
            )
        )
