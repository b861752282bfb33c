"""`Handles`: explicit handles (SEP-2567), minted and verified with a server's keys for the principal that is calling.

It needs no middleware: the caller is read from the session where there is one, else from what authentication left.
Handles are also types of tool arguments, wherever types are read with pydantic (the official SDK, FastMCP): a tool that
asks for `Annotated[str, handles.type("basket")]` gets the verified id, with `Handle` for `str` the whole handle.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import EllipsisType, MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeVar

from .._errors import ConfigurationError
from .._server import forms
from .._server.current import from_scope
from .._server.forms import Seconds
from .._session.claims import Principal
from .._session.session import Session, find_session, framework_scope
from .._tokens.handles import Handle, HandleError, Holder, check_type, make_id, mint, pattern, verify
from .._tokens.keyfile import Keys, key_source

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

__all__ = ["HandleOf", "HandleType", "Handles"]

DATA_KEY: Final = "mcp-sessions/handles"
"""The key in a session's data under which it keeps the public parts of each handle, never its text."""

_Self = TypeVar("_Self", bound="Handles")


def current_principal() -> Principal | None:
    """Return the session's principal, else the one that the framework authenticated, else None."""
    session = find_session()
    if session is not None:
        return session.principal
    scope = framework_scope()
    if scope is not None:
        return from_scope(dict(scope))
    auth = sys.modules.get("mcp.server.auth.middleware.auth_context")
    return None if auth is None else from_scope({"user": auth.auth_context_var.get()})


class Handles:
    """Mints and verifies the handles of one server: `Handles("env:MCP_SESSIONS_KEYS", lifetimes={"basket": 3600})`.

    A handle works for the principal it was minted for. Without a principal it is a credential that anyone can use.
    """

    __slots__ = ("_audience", "_clock", "_lifetime", "_lifetimes", "_principal", "_ring")

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
            audience: The server that the handles are for. If servers share keys, give each its own.
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
        if not (principal is None or callable(principal)):
            raise ConfigurationError("principal= takes a function that returns a Principal or None")
        self._audience: Final = audience
        self._lifetime: Final = _seconds("lifetime", lifetime)
        self._lifetimes: Final = {
            check_type(kind): _seconds(f"lifetimes[{kind!r}]", value) for kind, value in lifetimes.items()
        }
        self._principal: Final = principal
        self._clock: Final = clock

    def mint(
        self, type: str, *, session: Session | None = None, principal: Principal | EllipsisType | None = ...
    ) -> str:
        """Return a new handle, for the caller.

        Args:
            type: The type of object: at most 15 lower-case letters, digits and underscores.
            session: The only session in which the handle works, or None for any.
            principal: The holder; by default the caller.

        Raises:
            ConfigurationError: The type is not valid in a handle.
        """
        now = self._clock()
        lifetime = self._lifetimes.get(check_type(type), self._lifetime)
        expires_at = None if lifetime is None else int(now) + lifetime
        holder = self._holder(principal, session)
        return mint(self._ring(now).signing, type, make_id(), holder, expires_at=expires_at)

    def verify(
        self,
        type: str,
        handle: object,
        *,
        session: Session | EllipsisType | None = ...,
        principal: Principal | EllipsisType | None = ...,
    ) -> str:
        """Return the id of the object that a handle names: 26 characters, safe in logs, usable as a database key.

        Args:
            type: The expected type.
            handle: The value that the model sent.
            session: The session of the request; by default the current one.
            principal: The sender; by default the caller.

        Raises:
            HandleError: It is not a handle of this type for this caller; the text tells the model what to do.
        """
        return self.read(type, handle, session=session, principal=principal).id

    def read(
        self,
        type: str,
        handle: object,
        *,
        session: Session | EllipsisType | None = ...,
        principal: Principal | EllipsisType | None = ...,
    ) -> Handle:
        """Verify a handle as `verify` does, and return all of its content."""
        now = self._clock()
        lifetime = self._lifetimes.get(check_type(type), self._lifetime)
        holder = self._holder(principal, find_session() if isinstance(session, EllipsisType) else session)
        return verify(self._ring(now), type, handle, holder, now=now, lifetime=lifetime)

    def type(self, type: str) -> HandleType:
        """Return the annotation for a handle argument, as in `Annotated[str, handles.type("basket")]`.

        Raises:
            ConfigurationError: The type is not valid in a handle.
        """
        return HandleType(check_type(type), self.read)

    def install(self: _Self) -> _Self:  # noqa: PYI019  # Self comes with Python 3.11
        """Make `HandleOf["basket"]` refer to these handles in arguments declared from now on, and return them."""
        _Installed.type = staticmethod(self.type)
        return self

    async def keep(self, session: Session, type: str, handle: str) -> str:
        """Record a handle in a session's data, so that `of` finds it, and return the handle.

        Raises:
            HandleError: It is not a handle of this type that works in this session.
            DataError: The session's data has no room for it, or the session has ended.
        """
        found = self.read(type, handle, session=session)
        entry = [found.type, found.expires_at, found.bound]
        await session.data.update(DATA_KEY, lambda kept: {**self._live(kept), found.id: entry}, default={})
        return handle

    async def of(self, session: Session, type: str | None = None) -> list[str]:
        """Return the valid handles recorded in a session, of one type or all, oldest first, under the current key."""
        kept = self._live(await session.data.get(DATA_KEY, {}))
        signing = self._ring(self._clock()).signing
        within = self._holder(..., session)
        anywhere = replace(within, session=None)
        return [
            mint(signing, kind, name, within if bound else anywhere, expires_at=expires_at)
            for name, (kind, expires_at, bound) in kept.items()
            if type in {None, kind}
        ]

    async def forget(self, session: Session, id: str) -> None:
        """Remove the handle of an object, by the object's id, from a session's data.

        Raises:
            DataError: The session's data cannot be changed.
        """
        await session.data.update(
            DATA_KEY, lambda kept: {other: kept[other] for other in self._live(kept) if other != id}, default={}
        )

    def _live(self, kept: dict[str, Any]) -> dict[str, Any]:
        now = self._clock()
        return {name: entry for name, entry in kept.items() if entry[1] is None or now < entry[1]}

    def _holder(self, principal: Principal | EllipsisType | None, session: Session | None) -> Holder:
        if not isinstance(principal, EllipsisType):
            owner = principal
        elif self._principal is not None:
            owner = self._principal()
        else:
            owner = current_principal() if session is None else session.principal
        return Holder(self._audience, owner, None if session is None else session.ref)

    def __repr__(self) -> str:
        return f"<Handles of {self._audience}>"


def _seconds(option: str, value: object) -> int | None:
    return None if value is None else int(forms.LIFETIME.check(option, value))


# --- handles as types of arguments ---

_VALUES: Final[Mapping[object, Callable[[Handle], object]]] = {
    str: lambda handle: handle.id,
    Handle: lambda handle: handle,
}


class _Sent:
    """A value that was sent. pydantic quotes what it refuses, and so quotes `<not shown>`."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<not shown>"


class HandleType:
    """The annotation of a handle argument, in `Annotated` with `str` or `Handle`. Created by `Handles.type`."""

    __slots__ = ("_read", "_type")

    def __init__(self, type: str, read: Callable[[str, object], Handle]) -> None:
        self._type = type
        self._read = read

    def __get_pydantic_core_schema__(self, source: object, _: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        if source not in _VALUES:
            raise ConfigurationError(f'handles.type("{self._type}") annotates str or Handle, not {source!r}')
        value = _VALUES[source]
        validators = (_Sent, lambda sent: value(self._verify(sent)))
        return core_schema.chain_schema([core_schema.no_info_plain_validator_function(one) for one in validators])

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> dict[str, Any]:
        words = self._type.replace("_", " ")
        return {
            "type": "string",
            "pattern": pattern(self._type),
            "description": f"The handle of a {words}, copied exactly as it was given",
        }

    def _verify(self, sent: _Sent) -> Handle:
        from pydantic_core import PydanticCustomError

        try:
            return self._read(self._type, sent.value)
        except HandleError as error:
            raise PydanticCustomError(f"handle_{error.reason}", "{advice}", {"advice": str(error)}) from None

    def __repr__(self) -> str:
        return f"<HandleType {self._type}>"


class _Installed:
    type: ClassVar[Callable[[str], HandleType] | None] = None


if TYPE_CHECKING:
    from typing import Literal as HandleOf
else:

    class HandleOf:
        """`HandleOf["basket"]`: the id of a basket, verified by the handles installed last.

        Type checkers see a `Literal`, the only type with this syntax.
        """

        def __class_getitem__(cls, type: str) -> Any:
            if _Installed.type is None:
                raise ConfigurationError(f'HandleOf["{type}"] needs handles: call Handles(keys, ...).install() first')
            return Annotated[str, _Installed.type(type)]
