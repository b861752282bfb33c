"""The `keys=` option: where secrets come from, and when they are read again.

A file is checked once a second and read again when it has changed, so that keys rotate without a restart; one that
cannot be used, or that others can change, leaves the earlier keys in force. No log line or error holds a part of a key.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from .._errors import ConfigurationError
from .._files import read_private, require_posix
from .keys import REMEDY, KeyRing, bare

Keys = None | str | bytes | Sequence[str | bytes] | KeyRing
KeySource = Callable[[float], KeyRing]

LOOK_EVERY: Final = 1.0  # seconds between looks at a key file

logger = logging.getLogger("mcp_sessions")

_PEM_BLOCK: Final = re.compile(r"^[ \t]*-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL | re.MULTILINE)


def key_source(keys: Keys) -> KeySource:
    """Return the source of the keys in force, to be called for each request with the time in Unix seconds.

    Args:
        keys: A secret, `"env:NAME"` (secrets, `env:NAME` or `file:PATH`, separated by commas or lines), `"file:PATH"`
            (a secret a line, `#` comments, PEM blocks), a list of these, a `KeyRing`, or None for keys that die with
            this process.

    Raises:
        ConfigurationError: A key is missing, unreadable or unfit; the message holds the remedy.
    """
    if keys is None:
        logger.warning(
            "keys=None: using random session keys, for this process only; its sessions end with it. "
            'Set keys="env:NAME" or keys="file:PATH" to share and keep them'
        )
        return _always(KeyRing.random())
    if isinstance(keys, KeyRing):
        return _always(keys)
    items = [keys] if isinstance(keys, (str, bytes)) else keys
    if not isinstance(items, Sequence):
        raise ConfigurationError(f"keys= takes secrets or their location, not {type(keys).__name__}; {REMEDY}")
    watched = _WatchedKeys([part for number, item in enumerate(items) for part in _parts(item, f"keys[{number}]")])
    return watched if watched.paths else _always(watched.ring)


def _always(ring: KeyRing) -> KeySource:
    return lambda _now: ring


_Part = tuple[str, list[str | bytes] | Path]
"""What errors call a part of `keys=`, and its secrets or the file that holds them."""

_LOCATION: Final = re.compile(r"(env|file)\s*:(.*)", re.IGNORECASE | re.DOTALL)


def _parts(item: str | bytes, place: str, above: tuple[str, ...] = ()) -> Iterator[_Part]:
    """Yield the parts of an item; one that names a variable leads to what that holds, which may name others in turn."""
    location = _LOCATION.fullmatch(bare(item)) if isinstance(item, str) else None
    if location is None:
        yield place, [item]
        return
    kind, name = location[1].lower(), location[2].strip()
    place = f'keys="{kind}:{name}"'
    if not name:
        raise ConfigurationError(f"{place} names no {'file' if kind == 'file' else 'variable'}; {REMEDY}")
    if kind == "file":
        require_posix(place, 'use keys="env:NAME"')
        yield place, Path(name)
        return
    if name in above:
        raise ConfigurationError(f"{place}: the variable {name} names itself, by way of what it holds; {REMEDY}")
    secrets = _from_environment(name)
    if not any(isinstance(secret, str) and _LOCATION.fullmatch(secret) for secret in secrets):
        yield place, secrets
        return
    for secret in secrets:
        yield from _parts(secret, place, (*above, name))


def _from_environment(name: str) -> list[str | bytes]:
    value = os.environ.get(name, "").replace(",", "\n")
    # A PEM key in a variable is often one line, with its line ends written out.
    if secrets := _split(value.replace("\\n", "\n") if "-----BEGIN" in value else value):
        return secrets
    raise ConfigurationError(f'keys="env:{name}": the variable {name} is not set or empty; {REMEDY}')


def _split(text: str) -> list[str | bytes]:
    secrets: list[str | bytes] = []
    end = 0
    for block in _PEM_BLOCK.finditer(text):
        secrets += _lines(text[end : block.start()])
        if block[1] != "EC PARAMETERS":  # openssl writes it before a P-256 key, which names its curve itself
            secrets.append(block[0])
        end = block.end()
    return secrets + _lines(text[end:])


def _lines(text: str) -> list[str | bytes]:
    lines = (bare(line) for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


class _WatchedKeys:
    """The ring of some parts, made again when one of their files changes."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts
        self._looked = float("-inf")
        self.paths = [part for _, part in parts if isinstance(part, Path)]
        self._marks = [_mark(path) for path in self.paths]
        self._complaints: set[str] = set()  # those logged since the last good reading
        self.ring = self._read()

    def __call__(self, now: float) -> KeyRing:
        if self._looked <= now < self._looked + LOOK_EVERY:  # a clock that was set back looks again
            return self.ring
        self._looked = now
        marks = [_mark(path) for path in self.paths]  # before reading: a change in between is seen next time
        if self._complaints or marks != self._marks:  # what made a reading fail may pass without changing a mark
            self._marks = marks
            self._replace()
        return self.ring

    def _replace(self) -> None:
        try:
            self.ring = self._read()
        except ConfigurationError as error:
            if str(error) not in self._complaints:
                logger.error("key file changed but cannot be used; keeping the previous keys: %s", error)
            self._complaints.add(str(error))
        else:
            self._complaints.clear()
            logger.info("key file changed: now using %r", self.ring)

    def _read(self) -> KeyRing:
        found: list[tuple[str, str | bytes]] = []
        for place, part in self._parts:
            some = _load(part) if isinstance(part, Path) else part
            several = len(some) > 1
            found += [(f"{place}, secret {n}" if several else place, one) for n, one in enumerate(some, 1)]
        return KeyRing([secret for _, secret in found], places=[place for place, _ in found])


def _mark(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _load(path: Path) -> list[str | bytes]:
    try:
        text = read_private(str(path)).decode("utf-8-sig")
    except ConfigurationError as error:
        raise ConfigurationError(f'keys="file:{path}": {error}') from None
    except OSError as error:
        problem = f"{error.strerror}; write secrets to it, one per line"
        raise ConfigurationError(f'keys="file:{path}": {problem}; {REMEDY}') from None
    except ValueError:
        raise ConfigurationError(f'keys="file:{path}": not a file of UTF-8 text; {REMEDY}') from None
    if secrets := _split(text):
        return secrets
    raise ConfigurationError(f'keys="file:{path}": the file holds no secret; {REMEDY}')
