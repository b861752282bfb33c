"""`Calls`: what all messages say on their spans that call the same in one session, put together once.

Known by the texts that a client sent, so that one that comes again is not even read; what is written is made of what
`naming` lets through, at the first. How much is remembered is bounded, and texts of unusual length are not. Nothing
here starts a span.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
from msgspec import UNSET
from opentelemetry.context import Context
from opentelemetry.trace import Link

from ..jsonrpc import Message
from .attributes import CLIENT, Stamps
from .naming import alike, target_of, version_of
from .session_spans import link_to, of_session

_REMEMBERED: Final = 2048  # calls, of 1 to 2 KB each
_LONGEST: Final = 512  # of what a client wrote, together


class About(Protocol):
    """The session that a request belongs to, as telemetry needs it: what its token says."""

    @property
    def ref(self) -> str:
        """Its public name."""
        ...

    @property
    def trace(self) -> str | None:
        """The traceparent of its start, or None."""
        ...

    @property
    def client(self) -> str | None:
        """What its client calls itself, or None."""
        ...


class Call(msgspec.Struct, frozen=True):
    """What the spans of such messages have in common.

    Args:
        name: The name of a span.
        attributes: Its attributes; the second where `session.id` is somebody else's.
        parent: The context that it starts in where the message came with no trace context, and nothing is around.
        links: What it then links to.
    """

    name: str
    attributes: tuple[dict[str, str], dict[str, str]]
    parent: Context
    links: Sequence[Link]


class Calls:
    """The calls that came lately.

    Args:
        stamps: What names a session on a span.
    """

    __slots__ = ("_old", "_stamps", "_young")

    def __init__(self, stamps: Stamps) -> None:
        self._stamps: Final = stamps
        # Two generations: see `tokens.Tokens`, which remembers tokens in the same way and says why.
        self._young: dict[tuple[object, ...], Call] = {}
        self._old: dict[tuple[object, ...], Call] = {}

    def of(self, message: Message, version: str | None, about: About | None) -> Call:
        """What the span of one message says that those of others do, too.

        Args:
            message: The request or notification.
            version: The `MCP-Protocol-Version` header, or None.
            about: Its session, or None.
        """
        name = message.params.name
        said = None if name is UNSET else bytes(name)
        key: tuple[object, ...]
        if about is None:
            key = (message.method, said, version)
        else:
            key = (message.method, said, version, about.ref, about.trace, about.client)
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key) or self._made(message, version, about)
            if len(message.method) + len(said or b"") + len(version or "") <= _LONGEST:
                self._keep(key, found)
        return found

    def _keep(self, key: tuple[object, ...], call: Call) -> None:
        if len(self._young) >= _REMEMBERED // 2:
            self._old, self._young = self._young, {}
        self._young[key] = call

    def _made(self, message: Message, version: str | None, about: About | None) -> Call:
        label, target = message.label, target_of(message)
        name, said = label if target is None else f"{label} {target}", alike(label, target, version_of(version))
        if about is None:
            return Call(name, (said, said), Context(), ())
        if about.client is not None:
            said[CLIENT] = about.client
        stamps = [self._stamps.of(about.ref, claimed=claimed) for claimed in (False, True)]
        link = link_to(about.trace)
        return Call(
            name,
            ({**said, **stamps[0]}, {**said, **stamps[1]}),
            of_session(about.ref, Context()),
            () if link is None else (link,),
        )
