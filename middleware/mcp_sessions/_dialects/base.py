"""`Dialect`: one way in which clients identify a session, with everything that the core asks of it.

For each request the core asks all dialects, in the order of the list in `__init__`: to take their credentials out of
the headers (`extract`), whether they answer the request in place of the wrapped server (`answers`), and what identifies
its session (`find`). The first credential found is that of the request's session; its dialect opens the session and
changes the answer. Every hook has a default, so a small dialect is small, and a hook that no dialect has costs nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
from starlette.types import ASGIApp

from .._errors import Refusal
from .._protocol.headers import Header, RequestHeaders
from .._protocol.jsonrpc import Message
from .._protocol.methods import CALL, DISCOVER
from .._protocol.strict_json import join
from .._server.changes import Advertise
from .._server.context import Request
from .._server.credentials import NoCredential
from .._server.minting import mint_for
from .._server.response import Change
from .._server.sessions import open_session
from .._session.claims import Kind, RedactedRepr
from .._session.session import Session

Method = Callable[[Request], Awaitable[dict[str, Any]]]
"""Answers a request: returns the members of its result, or raises the `Refusal` that is answered."""


@dataclass(frozen=True, slots=True)
class Answers:
    """How a dialect answers a request itself, once the wrapped server has admitted the caller.

    Args:
        method: What answers it.
        session: Whether the message must carry a session, must not, or may.
        reason: The reason of the refusal if it does not.
        repeated: The members of the result that also stand beside it, in the envelope.
    """

    method: Method
    session: Literal["required", "refused", "optional"] = "optional"
    reason: str = "session_missing"
    repeated: tuple[str, ...] = ()


__all__ = ["Answers", "Credential", "Dialect", "Dialects", "NoCredential", "Request"]


class Credential(RedactedRepr, msgspec.Struct, frozen=True):
    """What identifies the session of a request. It is not verified yet."""

    dialect: Dialect
    id: str = ""  # the token; empty if the store remembers the session
    kind: Kind = "session"  # what the token is used as
    state: str | None = None  # the sealed state that came with it
    in_message: bool = False  # it stands in the JSON-RPC message
    owns_header: bool = False  # no other session may stand in the header `Mcp-Session-Id`
    contradicted: bool = False  # the header contradicts it; the refusal tells this to the session's owner only
    creates: bool = False  # its session may be created, so what stands beside it is verified before
    beside: bool = False  # the message names the request's session, which this one must not contradict


class Dialect:
    """One way in which clients identify a session.

    Attributes:
        name: The name of the dialect in the log and in the documentation.
        carries_state: Whether its clients carry the session's state; the store has it otherwise.
        lifetime: Seconds from creation to expiry, or None for the deployment's `lifetime=`.
        capability: What the dialect adds to `capabilities.sessions`.
        kinds: What the tokens of this dialect may be used as.
        is_always_sent: Whether clients send the credential with every request, also with those that have no body.
        serves_streams: Whether a GET in a session of the header is a stream of the wrapped server.
        is_on: Whether clients get sessions by this dialect; if not, it only refuses what it cannot accept.
        reads_everything: Whether a message that passes unread would evade this dialect, whatever its content type.
        lives_in_process: Whether its sessions belong to sessions that the wrapped server keeps in one process.
    """

    name: str = ""
    kinds: frozenset[str] = frozenset()
    is_always_sent: bool = False
    carries_state: bool = False
    lifetime: float | None = None
    capability: Mapping[str, Any] = {}
    serves_streams: bool = False
    is_on: bool = True
    reads_everything: bool = False
    lives_in_process: bool = False

    def extract(self, request: Request) -> None:
        """Take credentials of this dialect out of the headers, before the body is read; websocket upgrades too."""

    def wrap(self, request: Request, app: ASGIApp) -> ASGIApp:
        """Return the application to call in place of the wrapped server, also for the middleware's own probes."""
        return app

    def answers(self, request: Request) -> Answers | None:
        """Return how this dialect answers the request itself, or None if it does not."""
        return None

    def startup_warning(self, servers: Sequence[Any]) -> str | None:
        """Return what the log warns of at the start, given the session managers behind the endpoint, or None."""
        return None

    async def before_discovery(self, request: Request) -> None:
        """Refuse a `server/discover`, so that its client falls back to `initialize`; or let it pass."""

    async def before_call(self, request: Request) -> None:
        """Look at a `tools/call` before `answers` and `find` are asked, and note on the request what they need."""

    def reaches(self, request: Request) -> bool:
        """Return whether the client of a handshake creates sessions in this way, so that it is offered no others."""
        return False

    def concerns(self, message: Message) -> bool:
        """Return whether a message is about a session of this dialect: batches with one are refused."""
        return False

    def requires(self, request: Request, own: Credential | None) -> bool:
        """Return whether this dialect demands another session than the one that the request carries, if any."""
        return False

    def find(self, request: Request, earlier: Sequence[Credential]) -> Credential | NoCredential | None:
        """Return what identifies the session of the request, or why nothing does; None if it is not this dialect's.

        Args:
            request: The request.
            earlier: What the dialects before this one have found.

        Raises:
            Refusal: The request contradicts itself, or what it carries cannot be read.
        """
        return None

    def absence(self, headers: RequestHeaders, message: Message) -> NoCredential | None:
        """Return why a client of this dialect sent nothing that identifies a session; None for other clients."""
        return None

    async def open(self, request: Request, credential: Credential, *, fail_open: bool) -> Session | None:
        """Return the live session of a token, or None if the request goes on without one.

        Raises:
            Refusal: It is not valid for this caller, or the store did not answer.
        """
        return await open_session(
            *(request, credential.id, credential.kind),
            state=credential.state,
            carries_state=self.carries_state,
            fail_open=fail_open,
        )

    async def prepare(self, request: Request) -> None:
        """Change what the wrapped server gets: take the credential out of the body, or send it a notification first."""

    async def create(self, request: Request, kind: Kind, **options: Any) -> Session:
        """Create a session for the caller of a request, whose `id` its client then sends; see `minting.mint_for`.

        Raises:
            Refusal: The caller gets no session.
        """
        return await mint_for(request, self, kind, **options)

    def changes(self, request: Request, session: Session | None) -> Sequence[Change]:
        """Return what the answer needs: with the session that this dialect opened, or None on a handshake."""
        return ()

    def change_tools(self, request: Request) -> Change:
        """Return what changes a list of tools, whatever session its request is in."""
        return Change()

    def result_of(self, request: Request, error: Refusal) -> Mapping[str, Any] | None:
        """Return a result that a refused request gets in place of the error; None for the error."""
        return None

    async def refuse(self, request: Request, error: Refusal) -> Header | None:
        """Return a header that belongs to the refusal of a request whose session this dialect identified."""
        return None


class Dialects:
    """The dialects of one deployment, in order of precedence, with the hooks that each has."""

    def __init__(self, dialects: Iterable[Dialect], *, settings: Mapping[str, Any]) -> None:
        """Args:
        dialects: The dialects.
        settings: `capabilities.experimental.sessions`, which tells clients what is required and offered.
        """
        self.all: Final = tuple(dialects)
        self.extract: Final = self._hooks("extract")
        self.wrap: Final = self._hooks("wrap")
        self.answers: Final = self._hooks("answers")
        self.before: Final = {DISCOVER: self._hooks("before_discovery"), CALL: self._hooks("before_call")}
        self.change_tools: Final = self._hooks("change_tools")
        self.reaches: Final = self._hooks("reaches")
        self.concerns: Final = self._hooks("concerns")
        self.requires: Final = self._hooks("requires")
        self.find: Final = self._hooks("find")
        self.absence: Final = self._hooks("absence")
        self.prepare: Final = self._hooks("prepare")
        capability = {name: value for one in self.all for name, value in one.capability.items()}
        self.advertise: Final = Advertise(capability=join(capability), settings=join(settings))
        self.reads_everything: Final = any(one.reads_everything for one in self.all)

    def _hooks(self, name: str) -> tuple[Callable[..., Any], ...]:
        """Return the methods of this name that dialects define themselves."""
        return tuple(getattr(one, name) for one in self.all if getattr(type(one), name) is not getattr(Dialect, name))
