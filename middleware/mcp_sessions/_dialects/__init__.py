"""The dialects: the ways in which clients identify a session, one file each; here in order of precedence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .._errors import ConfigurationError
from .._server.option_types import as_seconds
from .._server.options import DAY, Options
from .._server.runtime import Runtime
from .base import Dialect, Dialects
from .cookie import Cookie
from .draft import Draft, offered_extensions
from .leading import Leading
from .remembered import PerUser
from .transport import Bridge, Transport


def dialects_of(options: Options, runtime: Runtime, summary: str) -> Dialects:
    """Return the dialects of a deployment.

    Args:
        options: The checked options.
        runtime: What its requests share.
        summary: Which requests need a session: `"never"`, `"some"` or `"always"`.

    Raises:
        ConfigurationError: `dialects=` is no sequence of dialects.
    """
    extensions = offered_extensions(options.wire.extensions, tracked=runtime.tracked)
    settings = {"required": summary, **dict.fromkeys(extensions, True)}
    return Dialects([*_checked(options.dialects), Draft(extensions), *_unchanged(options, runtime)], settings=settings)


def _unchanged(options: Options, runtime: Runtime) -> Iterator[Dialect]:
    """Yield what serves clients that know nothing of sessions: none of these survives the keys of a process."""
    transport, persistent = options.transport, runtime.keys_persistent
    lifetime, leads = as_seconds(transport.lifetime), options.wire.era == "auto"
    has_header = transport.header and persistent
    if transport.bridge:
        yield Bridge(names=has_header, lifetime=lifetime)
    else:
        yield Transport(is_on=has_header, lifetime=lifetime)
    if leads:
        yield Leading(names=has_header)
    if transport.cookie and persistent:
        yield Cookie(options.audience, shared=transport.cookie == "shared", lifetime=lifetime, leads=leads)
    if transport.principal and persistent:
        yield PerUser(lifetime=lifetime, idle=runtime.idle_timeout or DAY)


def _checked(dialects: Any) -> list[Dialect]:
    """Return the option `dialects=`, which names each kind of dialect once."""
    are_dialects = isinstance(dialects, Sequence) and all(isinstance(one, Dialect) for one in dialects)
    if are_dialects and len({type(one) for one in dialects}) == len(dialects):
        return list(dialects)
    raise ConfigurationError(
        f"dialects={dialects!r} must name each dialect once, as in dialects=[SEP1364Create(), SEP1364Initialize()];"
        " the draft and the transport header need no naming"
    )
