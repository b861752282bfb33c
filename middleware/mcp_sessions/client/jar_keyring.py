"""A jar in the operating system's keyring, by the library `keyring`.

One entry for each server and identity. Programs that write to one entry at the same moment are not kept apart, as a
keyring knows no locks: give each a service name of its own, or use a file.
"""

from __future__ import annotations

from threading import Lock
from types import ModuleType

import msgspec

from ..errors import ConfigurationError
from .errors import JarUnreadable
from .metadata import Metadata
from .shelves import Edit, Place, Shelf


class JarKeyring:
    """Sessions in the keyring.

    Args:
        service: The name under which the keyring shows them.

    Raises:
        ConfigurationError: The library is not installed.
    """

    blocks = True

    def __init__(self, service: str) -> None:
        self._keyring = _library()
        self._service = service
        self._lock = Lock()

    def change(self, place: Place, edit: Edit) -> Shelf:
        """Change one shelf, and tell what it holds then.

        Raises:
            JarUnreadable: The keyring cannot be used, or its entry is no shelf.
        """
        entry = f"{place.server} {place.identity}".rstrip()
        with self._lock:
            try:
                return self._change(entry, edit)
            except self._keyring.errors.KeyringError as error:
                raise JarUnreadable(f"the keyring cannot be used: {type(error).__name__}") from None

    def _change(self, entry: str, edit: Edit) -> Shelf:
        before = self._read(entry)
        after = edit(before)
        if after != before:
            self._keyring.set_password(self._service, entry, msgspec.json.encode(after).decode())
        return after

    def _read(self, entry: str) -> Shelf:
        raw = self._keyring.get_password(self._service, entry)
        if raw is None:
            return {}
        try:
            return msgspec.json.decode(raw, type=dict[str, Metadata])
        except msgspec.DecodeError:
            kept = f"{entry} (corrupt)"
            self._keyring.set_password(self._service, kept, raw)
            self._keyring.delete_password(self._service, entry)
        raise JarUnreadable(f"the keyring's entry {entry!r} is no shelf of sessions; it was moved to {kept!r}")


def _library() -> ModuleType:
    try:
        import keyring
        import keyring.errors
    except ImportError:
        raise ConfigurationError("SessionJar.in_keyring needs the library keyring: pip install keyring") from None
    return keyring
