"""Who a request is authenticated as, read from the ASGI scope.

Authentication happens elsewhere: this room only reads what it left behind. It knows the official
SDK's and FastMCP's authenticated user (client id, issuer, subject) and Starlette's `scope["user"]`
by their shape, and imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.types import Scope

from .errors import ConfigurationError
from .session import Principal

PrincipalOf = Callable[[Scope], "Principal | str | None"]
"""The `principal=` option: tells from the scope who a request is authenticated as."""

ReadPrincipal = Callable[[Scope], "Principal | None"]


def from_scope(scope: Scope) -> Principal | None:
    """The principal that an authentication middleware left on the scope, or None when there is none."""
    user = scope.get("user")
    if user is None or getattr(user, "is_authenticated", False) is not True:
        return None
    token = getattr(user, "access_token", None)
    return _from_token(token) if token is not None else _from_user(user)


def _from_token(token: Any) -> Principal:
    """The SDK's own three components; the subject falls back to the `sub` claim (FastMCP 3 keeps it only there)."""
    claims = getattr(token, "claims", None) or {}
    subject = getattr(token, "subject", None)
    issuer = claims.get("iss")
    return Principal(
        client_id=_text(getattr(token, "client_id", None)),
        issuer=_text(issuer),
        subject=_text(claims.get("sub") if subject is None else subject),
    )


def _from_user(user: Any) -> Principal:
    """Starlette's `BaseUser`: `identity` where it is implemented, `display_name` otherwise."""
    try:
        return Principal(subject=_text(user.identity))
    except (NotImplementedError, AttributeError):
        return Principal(subject=_text(user.display_name))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def reader(principal: PrincipalOf | None) -> ReadPrincipal:
    """The function that the middleware asks on every request.

    Raises:
        ConfigurationError: `principal` is not callable.
    """
    if principal is None:
        return from_scope
    if not callable(principal):
        raise ConfigurationError(
            "principal= takes a function of the ASGI scope that returns a Principal, a str or None"
        )
    return lambda scope: _named(principal(scope))


def _named(found: Principal | str | None) -> Principal | None:
    if found is None or isinstance(found, Principal):
        return found
    return Principal(subject=str(found))
