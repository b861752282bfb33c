"""Explicit handles (SEP-2567): minted and verified with a server's keys for the principal that is calling.

A tag covers text, type and holder, since a model copies handles from call to call. Verification is strict: mending case
or look-alikes would give one object several names. No middleware is needed; the caller is the session's, where there is
one, else the one that authentication found. Handles are also types of tool arguments, read with pydantic.
Sources: SEP-2567 (explicit state handles), RFC 2104 (HMAC), Crockford's base 32 for the alphabet.
"""

from __future__ import annotations

import hmac
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import EllipsisType, MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeVar

from ._errors import ConfigurationError, MCPSessionsError
from ._server import option_types
from ._server.logs import warn_of_holder
from ._server.option_types import Seconds
from ._server.principal import from_scope, identified
from ._session.claims import Principal
from ._session.data import ReservedName
from ._session.functions import check_clock, check_function
from ._session.keywords import known_keywords
from ._session.session import Session, find_session, framework_scope
from ._tokens.keyfile import Keys, key_source
from ._tokens.keys import Key, KeyRing, encode_fields

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

__all__ = ["Handle", "HandleError", "HandleOf", "HandleType", "Handles"]

ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # no i and l beside 1, no o beside 0, no u beside v
BITS: Final = 5  # of a character, all used: no two texts mean the same
LAYOUT: Final = {"key": 2, "id": 26, "expiry": 7, "tag": 13}  # characters of each part after the type, in their order
MAX_CHARS: Final = 64
BODY_CHARS: Final = sum(LAYOUT.values())
MAX_TYPE_CHARS: Final = MAX_CHARS - 1 - BODY_CHARS
DATA_KEY: Final = ReservedName("handles", "kept")  # of a session's data: the parts of each handle but its text

_TYPE: Final = r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*"
_CLASS: Final = "[0-9a-hjkmnp-tv-z]"
_SHAPE: Final = re.compile(rf"({_TYPE})_" + "".join(f"({_CLASS}{{{width}}})" for width in LAYOUT.values()))
_PURPOSE: Final = "mcp-sessions/handle/1"
_AROUND: Final = " \t\r\n\"'`.,;:!?()[]{}<>*"  # what a model may write around a handle

_Self = TypeVar("_Self", bound="Handles")
_Principal = Principal | EllipsisType | None  # `...` is the caller
_Session = Session | EllipsisType | None  # `...` is the current one


@dataclass(frozen=True, slots=True)
class Handle:
    """A verified handle. Its `text` is a credential for anonymous callers; its `id` is safe in logs."""

    type: str
    id: str  # the name of the object, 26 characters
    expires_at: int | None  # Unix seconds
    bound: bool  # to one session
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a handle; another holder's handle does not verify."""

    audience: str  # the deployment
    principal: Principal | None = None  # None is an anonymous caller
    session: str | None = None  # the `ref` of the caller's session


class HandleError(MCPSessionsError, ValueError):
    """The argument is not the expected handle. The text tells a model what to do, and never repeats the argument.

    `reason` is `"malformed"`; `"unknown"` if it was mistyped, made up, another holder's, or its key is gone; or
    `"other_type"` or `"expired"` if it is the caller's own.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def check_type(type: str) -> str:
    """Return a type that can stand in a handle, or raise ConfigurationError."""
    if isinstance(type, str) and len(type) <= MAX_TYPE_CHARS and re.fullmatch(_TYPE, type):  # type: ignore[redundant-expr]  # as it came
        return type
    raise ConfigurationError(
        f"type={type!r} must be at most {MAX_TYPE_CHARS} lower-case letters and digits, in words joined by "
        "underscores, as in 'basket' or 'price_list'"
    )


def pattern(type: str) -> str:
    """Return the regular expression of a type's handles, for JSON schemas (ECMA 262)."""
    return f"^{type}_{_CLASS}{{{BODY_CHARS}}}$"


def make_id() -> str:
    """Return the part `id` of a new handle: 130 random bits."""
    return _digits(secrets.randbits(BITS * LAYOUT["id"]), "id")


def mint(key: Key, type: str, id: str, holder: Holder, *, expires_at: int | None = None) -> str:
    """Return the handle of an object; the same arguments give the same text. It is refused from `expires_at` on."""
    body = _short_name(key) + id + _digits(expires_at or 0, "expiry")
    return f"{type}_{body}{_tag(key, type, body, holder)}"


def verify(
    ring: KeyRing, type: str, text: object, holder: Holder, *, now: float, lifetime: float | None = None
) -> Handle:
    """Return the handle in a text, if it is one of this type and this holder; raise `HandleError` otherwise.

    A handle that is bound to no session is valid in every one. `lifetime`, in seconds, is for the text of an error.
    """
    shape, words = _shape(text), _words(type)
    if shape is None:
        raise HandleError("malformed", _diagnosis(type, text))
    handle = _authentic(ring, shape, holder)
    if handle is None:
        again = f"copy the handle again exactly as it was given, or create a new {words}"
        raise HandleError("unknown", f"not one of your {words} handles: {again}")
    if not handle.type == type:
        raise HandleError("other_type", f"not {_one(type)} handle: it is {_one(handle.type)} handle")
    if handle.expires_at is None or now < handle.expires_at:
        return handle
    lives = "" if lifetime is None else f" {words} handles live {_duration(lifetime)};"
    raise HandleError("expired", f"expired:{lives} create a new {words}")


def _shape(text: object) -> re.Match[str] | None:
    return _SHAPE.fullmatch(text) if isinstance(text, str) and len(text) <= MAX_CHARS else None


def _authentic(ring: KeyRing, shape: re.Match[str], holder: Holder) -> Handle | None:
    kind, name, random, expiry, tag = shape.groups()
    expires_at = sum(ALPHABET.index(digit) << BITS * place for place, digit in enumerate(reversed(expiry))) or None
    # One pair of keys in 1,024 shares a short name, and a public key makes no handles.
    for key in (key for key in ring if key.handle_key is not None and _short_name(key) == name):
        for candidate in {replace(holder, session=None), holder}:
            if hmac.compare_digest(_tag(key, kind, name + random + expiry, candidate), tag):
                return Handle(kind, random, expires_at, candidate.session is not None, shape[0])
    return None


def _short_name(key: Key) -> str:
    return _cut(sha256(f"{_PURPOSE}/{key.kid}".encode("ascii")).digest(), "key")


def _tag(key: Key, type: str, head: str, holder: Holder) -> str:
    assert key.handle_key is not None, "a public key makes no handles"
    owner = key.subject(holder.principal)
    fields = encode_fields(_PURPOSE, key.kid, holder.audience, owner, holder.session, type, head)
    return _cut(hmac.digest(key.handle_key, fields, "sha256"), "tag")


def _digits(number: int, part: str) -> str:
    places = reversed(range(LAYOUT[part]))
    return "".join(ALPHABET[number >> BITS * place & len(ALPHABET) - 1] for place in places)


def _cut(digest: bytes, part: str) -> str:
    return _digits(int.from_bytes(digest, "big") >> len(digest) * 8 - BITS * LAYOUT[part], part)


def _diagnosis(type: str, text: object) -> str:
    one, words, length = _one(type), _words(type), len(type) + 1 + BODY_CHARS
    if not isinstance(text, str):
        return f"not {one} handle: a handle is a string"
    read = text[: 4 * MAX_CHARS]  # a text that is far too long is not read further
    if _shape(read.strip(_AROUND)) is not None:
        return f"not {one} handle as it stands: send it alone, with no spaces, quotes or punctuation around it"
    if read.isascii() and _shape(read.lower()) is not None:
        return f"not {one} handle as it stands: handles are lower case; copy it again exactly as it was given"
    if not read.startswith(f"{type}_"):
        hint = f"copy it again exactly as it was given, or create a new {words}"
        return f"not {one} handle: those begin with {type}_; {hint}"
    if len(read) < length:
        return f"this {words} handle was cut short: copy all {length} characters of it"
    if len(read) > length:
        return f"this {words} handle is too long: copy its {length} characters and nothing else"
    return f"this {words} handle was mistyped: copy it again exactly as it was given"


def _words(type: str) -> str:
    return type.replace("_", " ")


def _one(type: str) -> str:
    return f"{'an' if type[0] in 'aeiou' else 'a'} {_words(type)}"


def _duration(seconds: float) -> str:
    return f"{int(seconds) // 3600} h" if int(seconds) % 3600 == 0 else f"{int(seconds)} s"


def current_principal() -> Principal | None:
    """Return the session's principal, else the one that the framework authenticated, else None."""
    if (session := find_session()) is not None:
        return session.principal
    if (scope := framework_scope()) is not None:
        return from_scope(dict(scope))
    auth = sys.modules.get("mcp.server.auth.middleware.auth_context")
    return None if auth is None else from_scope({"user": auth.auth_context_var.get()})


class Handles:
    """Mints and verifies the handles of one server: `Handles("env:MCP_SESSIONS_KEYS", lifetimes={"basket": 3600})`.

    A handle works for the principal it was minted for. Without a principal it is a credential that anyone can use.
    A type is at most 15 lower-case letters, digits and underscores, else `ConfigurationError` is raised.
    """

    @known_keywords
    def __init__(
        self,
        keys: Keys,
        *,
        audience: str = "mcp-sessions",
        lifetime: Seconds | None = None,
        lifetimes: Mapping[str, Seconds | None] = MappingProxyType({}),
        principal: Callable[[], Principal | None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Args:
            keys: As for the middleware, preferably the same: secrets, `"env:NAME"`, `"file:PATH"` or a `KeyRing`.
            audience: The server that the handles are for. If servers share keys, give each a different one.
            lifetime: Seconds or a `timedelta` for which a handle works, or None for no limit.
            lifetimes: Lifetimes of individual types.
            principal: Returns the caller; by default the session's principal, else the user authenticated by the SDK.
            clock: Returns Unix seconds; for tests.

        Raises:
            ConfigurationError: An option is wrong; the message names the remedy.
        """
        self._ring: Final = key_source(keys)
        if not (isinstance(audience, str) and audience):  # type: ignore[redundant-expr]  # as it came
            raise ConfigurationError("audience must be a non-empty string")
        self._audience: Final = audience
        self._lifetime: Final = _seconds("lifetime", lifetime)
        self._lifetimes: Final = {
            check_type(kind): _seconds(f"lifetimes[{kind!r}]", value) for kind, value in lifetimes.items()
        }
        self._principal: Final = check_function("principal", principal)
        self._clock: Final = check_clock(clock)

    def mint(self, type: str, *, session: Session | None = None, principal: _Principal = ...) -> str:
        """Return a new handle of a type, for the caller or `principal`; with `session` it works in that one alone."""
        now = self._clock()
        lifetime = self._lifetimes.get(check_type(type), self._lifetime)
        expires_at = None if lifetime is None else int(now) + lifetime
        return mint(self._ring(now).signing, type, make_id(), self._holder(principal, session), expires_at=expires_at)

    def verify(self, type: str, handle: object, *, session: _Session = ..., principal: _Principal = ...) -> str:
        """Return the id of the object that a handle names: 26 characters, safe in logs, usable as a database key.

        The sender is the caller, in the current session, unless others are given. Raises `HandleError` if the value is
        not a handle of this type for this sender; the text tells the model what to do.
        """
        return self.read(type, handle, session=session, principal=principal).id

    def read(self, type: str, handle: object, *, session: _Session = ..., principal: _Principal = ...) -> Handle:
        """Verify a handle as `verify` does, and return all of its content."""
        now = self._clock()
        lifetime = self._lifetimes.get(check_type(type), self._lifetime)
        holder = self._holder(principal, find_session() if isinstance(session, EllipsisType) else session)
        return verify(self._ring(now), type, handle, holder, now=now, lifetime=lifetime)

    def type(self, type: str) -> HandleType:
        """Return the annotation for a handle argument, as in `Annotated[str, handles.type("basket")]`."""
        return HandleType(check_type(type), self.read)

    def install(self: _Self) -> _Self:  # noqa: PYI019  # Self comes with Python 3.11
        """Make `HandleOf["basket"]` refer to these handles in arguments declared from now on, and return them."""
        _Installed.type = staticmethod(self.type)
        return self

    async def keep(self, session: Session, type: str, handle: str) -> str:
        """Record a handle that works in a session in its data, so that `of` finds it, and return the handle.

        Raises `HandleError` as `verify`, and `DataError` where the session's data cannot be changed.
        """
        found = self.read(type, handle, session=session)
        (owner, *_) = self._owners()
        entry = [found.type, found.expires_at, found.bound and session.ref, owner]
        await session.data.update(DATA_KEY, lambda kept: {**self._live(kept), found.id: entry}, default={})
        return handle

    async def of(self, session: Session, type: str | None = None) -> list[str]:
        """Return the caller's valid handles recorded in a session, of one type or all, oldest first.

        They are those that `keep` recorded for this principal and audience, under the current key.
        """
        signing, within = self._ring(self._clock()).signing, self._holder(..., session)
        owners = self._owners()
        return [
            mint(signing, kind, name, within if bound else replace(within, session=None), expires_at=expires_at)
            for name, (kind, expires_at, bound, owner) in self._live(await session.data.get(DATA_KEY, {})).items()
            if type in {None, kind} and owner in owners and bound in {False, session.ref}
        ]

    async def forget(self, session: Session, id: str) -> None:
        """Remove the handle of an object, by the object's id, from a session's data. Raises `DataError` as `keep`."""
        await session.data.update(
            DATA_KEY, lambda kept: {other: kept[other] for other in self._live(kept) if other != id}, default={}
        )

    def _live(self, kept: dict[str, Any]) -> dict[str, Any]:
        now = self._clock()
        return {name: entry for name, entry in kept.items() if entry[1] is None or now < entry[1]}

    def _owners(self) -> list[str]:
        """Return the names of the caller as the holder of kept handles, by each key; that of the signing one first."""
        names = [""]  # the session's principal, which stays the same
        if self._principal is not None:
            principal = self._principal()
            names = ["anonymous"] if principal is None else self._ring(self._clock()).subjects(principal)
        return [f"{name} {self._audience}" for name in names]

    def _holder(self, principal: _Principal, session: Session | None) -> Holder:
        if isinstance(principal, EllipsisType):
            called = self._principal or current_principal
            principal = called() if session is None or self._principal else session.principal
        if principal is not None:
            principal = warn_of_holder(identified(principal, "principal= returned"))
        return Holder(self._audience, principal, None if session is None else session.ref)

    def __repr__(self) -> str:
        return f"<Handles of {self._audience}>"


def _seconds(option: str, value: object) -> int | None:
    return None if value is None else int(option_types.LIFETIME.check(option, value))


class _Sent:
    """A value that was sent. pydantic quotes what it refuses, and so quotes `<not shown>`."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<not shown>"


class HandleType:
    """The annotation of a handle argument, in `Annotated` with `str` or `Handle`. Created by `Handles.type`."""

    def __init__(self, type: str, read: Callable[[str, object], Handle]) -> None:
        self._type = type
        self._read = read

    def __get_pydantic_core_schema__(self, source: object, _: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import PydanticCustomError, core_schema

        if source not in {str, Handle}:
            raise ConfigurationError(f'handles.type("{self._type}") annotates str or Handle, not {source!r}')

        def verified(sent: _Sent) -> object:
            try:
                handle = self._read(self._type, sent.value)
            except HandleError as error:
                raise PydanticCustomError(f"handle_{error.reason}", "{advice}", {"advice": str(error)}) from None
            return handle if source is Handle else handle.id

        steps = (_Sent, verified)
        return core_schema.chain_schema([core_schema.no_info_plain_validator_function(step) for step in steps])

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> dict[str, Any]:
        text = f"The handle of {_one(self._type)}, copied exactly as it was given"
        return {"type": "string", "pattern": pattern(self._type), "description": text}

    def __repr__(self) -> str:
        return f"<HandleType {self._type}>"


class _Installed:
    type: ClassVar[Callable[[str], HandleType] | None] = None


if TYPE_CHECKING:
    from typing import Literal as HandleOf  # the only type with this syntax
else:

    class HandleOf:
        """`HandleOf["basket"]`: the id of a basket, verified by the handles installed last."""

        def __class_getitem__(cls, type: str) -> Any:
            if _Installed.type is None:
                raise ConfigurationError(f'HandleOf["{type}"] needs handles: call Handles(keys, ...).install() first')
            return Annotated[str, _Installed.type(type)]
