"""Observers learn what happens to sessions and requests: the log, telemetry, and `listen=`.

They change nothing for clients: what one raises is logged once, and requests go on. What telemetry has to change on the
way is a return value: the trace context of a request (`Watch.traceparent`) and of a new session (`Creation.trace`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ClassVar, Final, Protocol

import msgspec
from starlette.types import Scope

from .._errors import Refusal
from .._protocol.headers import RequestHeaders
from .._protocol.jsonrpc import Message
from .._session.claims import Claims, RedactedRepr
from .._session.events import RequestRefused, SessionCreated, SessionDeleted, SessionUsed
from .._session.session import Session
from ..telemetry._core import call_observer

Caller = tuple[str | None, str | None]  # address and user


class Watched(RedactedRepr, msgspec.Struct, frozen=True):
    """A request, as observers see it."""

    message: Message | None
    headers: RequestHeaders
    scope: Scope
    claims: Claims | None  # of its session, also if that is refused
    server_id: str | None  # of the wrapped server's own transport session
    is_forwarded: bool
    refused: Refusal | None
    arrived_at: float  # by `perf_counter`
    store_fault: Callable[[float], str | None]  # why the store has not answered since a moment of `perf_counter`


class Watch(Protocol):
    """What one observer learns of a request while it is handled."""

    traceparent: str | None  # forwarded in place of the client's

    def begin_response(self, status: int, session_ids: Sequence[str]) -> None:
        """The response begins; `session_ids` are those that its headers name."""

    def read(self, text: bytes) -> None:
        """A message of the response leaves."""

    def refuse(self, refusal: Refusal) -> None:
        """The request is refused."""

    def name_session(self, ref: str) -> None:
        """The request creates a session."""

    def current(self) -> AbstractContextManager[None]:
        """Return a context in which what the middleware does counts as a part of the request."""

    def end(self, error: BaseException | None) -> None:
        """The answer has left, or the application raised."""


class Creation(Protocol):
    """The creation of a session, for one observer."""

    @property
    def trace(self) -> str | None:
        """The traceparent of the session's start, for its token."""

    def end(self, error: BaseException | None) -> None:
        """The session is complete, or was refused."""


class Observer:
    """Learns what happens. Every method has a default; one that is not overridden is never called."""

    name: ClassVar[str] = "observer"

    def created(self, event: SessionCreated) -> None:
        """A session was created."""

    def used(self, event: SessionUsed) -> None:
        """A request in a session is forwarded."""

    def refused(self, event: RequestRefused, caller: Callable[[], Caller], /) -> None:
        """A request was refused; `caller` returns who sent it."""

    def ended(self, event: SessionDeleted) -> None:
        """A session has ended."""

    def creating(self, claims: Claims) -> Creation | None:
        """Observe the creation of a session from now on, or return None."""

    def is_watching(self) -> bool:
        """Return True if requests are observed now, given that `watch` is overridden; it must not raise."""
        return True

    def watch(self, request: Watched) -> Watch | None:
        """Observe a request from now on, if `is_watching()`, or return None."""


Part = tuple[str, Any]  # the name of an observer, and what it uses for one request or one creation


class Watching:
    """What all observers learn of one request."""

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        self._parts: Final = parts
        traces = (call_observer(name, getattr, part, "traceparent", None) for name, part in parts)
        self.traceparent: Final[str | None] = next(filter(None, traces), None)  # forwarded in place of the client's

    def __enter__(self) -> None:
        """Nothing remains to be done: what observes has begun."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._parts:
            self._call("end", error)

    def begin_response(self, status: int, session_ids: Sequence[str]) -> None:
        """Report the start of the response."""
        self._call("begin_response", status, session_ids)

    def read(self, text: bytes) -> None:
        """Report a message of the response."""
        self._call("read", text)

    def refuse(self, refusal: Refusal) -> None:
        """Report why the request is refused."""
        self._call("refuse", refusal)

    def name_session(self, ref: str) -> None:
        """Report the session that the request creates."""
        self._call("name_session", ref)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Let what happens within the block count as a part of the request."""
        with ExitStack() as stack:
            for name, part in self._parts:
                if (context := call_observer(name, part.current)) is not None:
                    call_observer(name, stack.enter_context, context)
            yield

    def _call(self, method: str, *args: object) -> None:
        for name, part in reversed(self._parts):
            call_observer(name, getattr(part, method), *args)


UNWATCHED: Final = Watching()


class Creating:
    """The creation of one session, for all observers."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts: Final = parts
        traces = (call_observer(name, getattr, part, "trace", None) for name, part in parts)
        self.trace: Final[str | None] = next(filter(None, traces), None)

    def end(self, error: BaseException | None = None) -> None:
        """Report that the session is complete, or why it is not created."""
        for name, part in self._parts:
            call_observer(name, part.end, error)


class Observers:
    """The observers of one middleware."""

    def __init__(self, *observers: Observer) -> None:
        self._created: Final = _hooks(observers, "created")
        self._used: Final = _hooks(observers, "used")
        self._refused: Final = _hooks(observers, "refused")
        self._ended: Final = _hooks(observers, "ended")
        self._creating: Final = _hooks(observers, "creating")
        self._watching: Final = [one for one in observers if type(one).watch is not Observer.watch]

    def created(self, event: SessionCreated) -> None:
        """Report that a session was created."""
        _tell(self._created, event)

    def used(self, session: Session, message: Message) -> None:
        """Report that a message in a session is forwarded."""
        if self._used:
            _tell(self._used, SessionUsed(session.ref, message.label))

    def refused(self, event: RequestRefused, caller: Callable[[], Caller]) -> None:
        """Report that a request was refused."""
        _tell(self._refused, event, caller)

    def ended(self, event: SessionDeleted) -> None:
        """Report that a session has ended."""
        _tell(self._ended, event)

    def creating(self, claims: Claims) -> Creating:
        """Report that a session is being created."""
        return Creating([(name, part) for name, part in _tell(self._creating, claims) if part is not None])

    def are_watching(self) -> bool:
        """Return True if a request is observed now."""
        for one in self._watching:  # noqa: SIM110  # a generator takes longer than the question
            if one.is_watching():
                return True
        return False

    def watch(self, request: Watched) -> Watching:
        """Report a request; what is returned learns how it goes on."""
        watching = [one for one in self._watching if one.is_watching()]
        found = [(one.name, call_observer(one.name, one.watch, request)) for one in watching]
        parts = [(name, part) for name, part in found if part is not None]
        return Watching(parts) if parts else UNWATCHED


Hooks = list[tuple[str, Callable[..., Any]]]


def _hooks(observers: Sequence[Observer], method: str) -> Hooks:
    """Return the methods of this name that observers define themselves, with the names of the observers."""
    own = (one for one in observers if getattr(type(one), method) is not getattr(Observer, method))
    return [(one.name, getattr(one, method)) for one in own]


def _tell(hooks: Hooks, *args: object) -> list[Part]:
    """Call each hook, and return what it returns; None for one that raises."""
    return [(name, call_observer(name, hook, *args)) for name, hook in hooks]
