"""A pytest plugin that fails a run in which a credential comes into a log line, a warning or the text of an error.

It wraps the few places in which credentials are made, and keeps the secret part of each: a token's signature, a
state's sealed bytes, a key's material.
"""

import functools
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pytest

from mcp_sessions import KeyRing, MCPSessionsError
from mcp_sessions._server.observers import Observers
from mcp_sessions._tokens import seal
from mcp_sessions._tokens.jwt import Tokens
from mcp_sessions._tokens.keys import base64url

WINDOW: Final = 16  # characters by which a secret is searched for, before it is compared as a whole
SECRETS: Final[set[str]] = set()
TEXTS: Final[set[str]] = set()  # that may leave the process


def credential(token: str, *_: object) -> None:
    """Keep the secret part of a session id or a state token, which follows the last dot."""
    SECRETS.add(token.rsplit(".", 1)[1])


def key_ring(_: None, ring: KeyRing, secrets: Iterable[str | bytes]) -> None:
    """Keep the material of keys, in the forms in which it could be written."""
    derived = [one for key in ring._keys.values() for one in (key.signing, key.handle_key, key.principal_key)]
    for material in (*secrets, *derived):
        if isinstance(material, str):
            SECRETS.update(line for line in material.splitlines() if "-----" not in line)
        elif isinstance(material, bytes):
            SECRETS.update((material.hex(), base64url(material), ascii(material)[2:-1]))


def listen(place: object, name: str, note: Callable[..., None]) -> None:
    """Have `note` called with the result and the arguments of a function."""
    function = getattr(place, name)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        note(result, *args)
        return result

    setattr(place, name, wrapped)


class Keeper(logging.Handler):
    """Keeps the records of all loggers."""

    def emit(self, record: logging.LogRecord) -> None:
        TEXTS.add(logging.Formatter().format(record))


def pytest_configure() -> None:
    """Listen from before the first test file is imported."""
    listen(Tokens, "mint", credential)
    listen(seal, "seal", credential)
    listen(KeyRing, "__init__", key_ring)
    listen(MCPSessionsError, "__init__", lambda _, error, *args: TEXTS.add(f"{error} {error.args!r}"))
    for fact in ("created", "refused", "ended"):
        listen(Observers, fact, lambda _, observers, event, *more: TEXTS.add(repr(event)))
    for level in ("debug", "info", "warning", "error", "exception", "critical"):  # also those that are not enabled
        listen(
            logging.getLogger("mcp_sessions"), level, lambda _, text, *args: TEXTS.add(text % args if args else text)
        )
    logging.getLogger().addHandler(Keeper())


def pytest_warning_recorded(warning_message: warnings.WarningMessage) -> None:
    """Keep the text of a warning, which is printed too."""
    TEXTS.add(str(warning_message.message))


@pytest.fixture(scope="session", autouse=True)
def no_leak() -> Iterator[None]:
    """Fail the last test of each process where a secret stands in a text, which is shown without it."""
    yield
    beginnings: dict[str, list[str]] = {}
    for secret in SECRETS:
        if len(secret) >= WINDOW:
            beginnings.setdefault(secret[:WINDOW], []).append(secret)
    assert not [
        text.replace(secret, "[SECRET]")[:300]
        for text in TEXTS
        for beginning in {text[at : at + WINDOW] for at in range(len(text))} & beginnings.keys()
        for secret in beginnings[beginning]
        if secret in text
    ]
