"""`session.state`: decoded when it is first read, and compared with what was stored when the response leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Final

import msgspec

from .._errors import StateClosed, StateNotJSON, StateTooLarge, StoreUnavailable
from . import data
from .tool_errors import as_tool_error

MAX_BYTES: Final = 4096  # as JSON; the default of `Limits.state_bytes`
_read: Final = msgspec.json.Decoder(dict[str, Any]).decode


class State(MutableMapping[str, Any]):
    """Small application data that the client carries, sealed, from request to request: a mapping of JSON values.

    The last write wins: if two parallel requests change it, the client keeps only one of the changes. Data that must
    not be lost belongs in `session.data`.
    """

    __slots__ = ("_check", "_closed", "_fault", "_stored", "_values")

    def __init__(self, stored: bytes | None, *, check: Callable[[bytes], object]) -> None:
        """Args:
        stored: The JSON object that the client carried or that the store has, or None without one.
        check: Called with the JSON that would be stored; raises `StateTooLarge`.
        """
        self._stored = stored
        self._fault: str | None = None  # why the store did not answer, so that nothing can be read
        self._values: dict[str, Any] | None = None  # until they are read
        self._closed = False
        self._check = check

    def _load(self) -> dict[str, Any]:
        if self._fault is not None:
            raise as_tool_error(StoreUnavailable(self._fault))
        if self._values is None:
            self._values = _read(b"{}" if self._stored is None else self._stored)
        return self._values

    def __getitem__(self, key: str) -> Any:
        return self._load()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

    def __setitem__(self, key: str, value: Any) -> None:
        values = self._writable()
        self._check(encode_state({**values, key: value}))
        values[key] = value

    def __delitem__(self, key: str) -> None:
        del self._writable()[key]

    def __repr__(self) -> str:
        return f"<State {'closed' if self._closed else 'open'}>"

    def _writable(self) -> dict[str, Any]:
        if self._closed:
            raise StateClosed("the response was sent; session state can be changed only while the request is handled")
        return self._load()

    def section(self, name: str) -> MutableMapping[str, Any]:
        """Return a part of the state, itself a mapping, which the library of this name alone uses.

        It is the value of this name in the state. If clients choose names, keep their values in a section, too.
        """
        return Section(self, name)

    # --- for the middleware ---

    def _changed(self) -> bytes | None:
        """Return the JSON object to store in place of the present one, or None if nothing changed.

        Raises:
            StateNotJSON: A nested value has no JSON form.
            StateTooLarge: A nested value grew past the limit.
        """
        if self._values is None:
            return None
        payload = encode_state(self._values)
        if payload == (self._stored or b"{}"):
            return None
        self._check(payload)
        return payload

    def _close(self) -> None:
        """Refuse further changes: the response has left, or never will."""
        self._closed = True


class Section(MutableMapping[str, Any]):
    """One library's part of a `State`, kept under the library's name."""

    __slots__ = ("_name", "_state")

    def __init__(self, state: State, name: str) -> None:
        self._state = state
        self._name = name

    def _values(self) -> dict[str, Any]:
        values = self._state.get(self._name, {})
        if not isinstance(values, dict):
            raise StateNotJSON(f"session state holds a plain value under {self._name!r}, not a section")
        return values

    def __getitem__(self, key: str) -> Any:
        return self._values()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __setitem__(self, key: str, value: Any) -> None:
        self._state[self._name] = {**self._values(), key: value}

    def __delitem__(self, key: str) -> None:
        values = dict(self._values())
        del values[key]
        self._state[self._name] = values


def check_size(payload: bytes, limit: int = MAX_BYTES) -> None:
    """Check that the JSON of a state is no longer than it may be, or raise `StateTooLarge`."""
    if not len(payload) <= limit:
        raise StateTooLarge(len(payload), limit)


def encode_state(values: dict[str, Any]) -> bytes:
    """Return the JSON of a state, or raise `StateNotJSON` where a value has none."""
    try:
        return data.encode(values)
    except ValueError as error:
        place = next((f", under {key!r}" for key, value in values.items() if not _is_json(value)), "")
        raise StateNotJSON(f"session state must be JSON: {error}{place}") from error


def _is_json(value: object) -> bool:
    try:
        data.encode(value)
    except ValueError:
        return False
    return True
