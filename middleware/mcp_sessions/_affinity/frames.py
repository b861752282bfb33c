"""The connection between two workers: each proves that it has the keys, and then they exchange frames.

A frame is the length of a MessagePack map and the map: the scope of a request, an event of ASGI, or how a request ends.
An empty frame is a beat. Both sides prove themselves before anything of a request is sent, since another process may
have got the address of a worker that is gone. A connection that leaves the machine is sealed with AES-256-GCM: a key
for each direction, derived from both nonces, and the number of the frame as its nonce.
Sources: RFC 2104 (HMAC), NIST SP 800-38D (GCM).
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import anyio
import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from .._tokens.keys import encode_fields

BEAT: Final = 1.0  # seconds between two beats, in both directions
SILENCE: Final = 3.0  # seconds without a byte after which the other side has stopped
GREETING_TIMEOUT: Final = 3.0  # seconds for each step of the greeting
MAX_FRAME: Final = 1 << 25  # bytes
PIECE: Final = 1 << 18  # bytes of a body in one frame
_MAGIC: Final = b"mcp-hop1"
_KID: Final = 8
_NONCE: Final = 16
_PROOF: Final = 32
_LENGTH: Final = 4
_BACKLOG: Final = 1 << 16  # bytes that wait to be sent, beyond which a beat says nothing new

KeyOf = Callable[[str], bytes | None]
"""Returns the hop key of a key id, or None if the keys do not include it."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode


class ConnectionLost(Exception):
    """The other side has closed the connection, or what came is no frame of it."""


class NotProved(Exception):
    """Whoever listens there is not the worker that was meant, or does not have the keys."""


class Channel:
    """One connection whose two sides have proved themselves."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keys: tuple[bytes, bytes] | None
    ) -> None:
        """Args:
        reader: What comes.
        writer: What goes out.
        keys: What seals the frames that go out, and those that come in; None on one machine.
        """
        self._reader: Final = reader
        self._writer: Final = writer
        self._sealing: Final = None if keys is None else AESGCM(keys[0])
        self._opening: Final = None if keys is None else AESGCM(keys[1])
        self._sent = self._received = 0
        self._length: int | None = None  # of the frame that comes next, once it is known
        self._draining: Final = asyncio.Lock()  # before Python 3.12, two tasks must not wait at once
        self._beating: Final = asyncio.get_running_loop().create_task(self._beat())

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a frame, and wait until there is room for more.

        Raises:
            ConnectionLost: The other side is gone.
        """
        self._write(_encode(message))
        try:
            async with self._draining:
                await self._writer.drain()
        except OSError as error:
            raise ConnectionLost from error

    def _write(self, payload: bytes) -> None:
        if self._sealing is not None:
            payload = self._sealing.encrypt(self._sent.to_bytes(12, "big"), payload, None)
            self._sent += 1
        self._writer.write(len(payload).to_bytes(_LENGTH, "big") + payload)

    async def receive(self) -> dict[str, Any]:
        """Return the next frame that is no beat.

        Raises:
            ConnectionLost: The other side is gone.
            TimeoutError: It has been silent for `SILENCE` seconds; a later call goes on.
        """
        while True:
            payload = await self._next()
            if payload:
                return payload

    async def _next(self) -> dict[str, Any]:
        try:
            with anyio.fail_after(SILENCE):  # what is cancelled leaves every byte in the reader's buffer
                if self._length is None:
                    self._length = int.from_bytes(await self._reader.readexactly(_LENGTH), "big")
                if self._length > MAX_FRAME:
                    raise ConnectionLost
                payload = await self._reader.readexactly(self._length)
            self._length = None
            if self._opening is not None:
                payload = self._opening.decrypt(self._received.to_bytes(12, "big"), payload, None)
                self._received += 1
            return _decode(payload) if payload else {}
        except TimeoutError:  # which is an `OSError`
            raise
        except (OSError, asyncio.IncompleteReadError, InvalidTag, msgspec.MsgspecError) as error:
            raise ConnectionLost from error

    async def _beat(self) -> None:
        with suppress(Exception):
            while not self._writer.is_closing():
                await asyncio.sleep(BEAT)
                if self._writer.transport.get_write_buffer_size() < _BACKLOG:
                    self._write(b"")

    def close(self) -> None:
        """Close the connection without waiting."""
        self._beating.cancel()
        self._writer.close()


async def greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, name: str, kid: str, key: bytes
) -> Channel:
    """Prove to a listening worker that this one has the keys, once that worker has proved who it is.

    Raises:
        NotProved: It is another worker, or has other keys.
        ConnectionLost: It has closed the connection.
        TimeoutError: It has not answered in time.
    """
    nonce = secrets.token_bytes(_NONCE)
    writer.write(_MAGIC + kid.encode("ascii") + nonce)
    answer = await _read(reader, _NONCE + _PROOF)
    nonces = nonce + answer[:_NONCE]
    if not hmac.compare_digest(answer[_NONCE:], _proof(key, "owner", name, nonces)):
        raise NotProved
    writer.write(_proof(key, "caller", name, nonces))
    to_owner, to_caller = _proof(key, "to owner", name, nonces), _proof(key, "to caller", name, nonces)
    return Channel(reader, writer, None if _is_local(writer) else (to_owner, to_caller))


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, name: str, key_of: KeyOf) -> Channel:
    """Prove to a caller that this is the worker of that name, and let it prove that it has the keys.

    Raises:
        NotProved: It does not have them.
        ConnectionLost: It has closed the connection.
        TimeoutError: It has not answered in time.
    """
    greeting = await _read(reader, len(_MAGIC) + _KID + _NONCE)
    key = key_of(greeting[len(_MAGIC) : -_NONCE].decode("latin-1")) if greeting.startswith(_MAGIC) else None
    if key is None:
        raise NotProved
    nonce = secrets.token_bytes(_NONCE)
    nonces = greeting[-_NONCE:] + nonce
    writer.write(nonce + _proof(key, "owner", name, nonces))
    if not hmac.compare_digest(await _read(reader, _PROOF), _proof(key, "caller", name, nonces)):
        raise NotProved
    to_owner, to_caller = _proof(key, "to owner", name, nonces), _proof(key, "to caller", name, nonces)
    return Channel(reader, writer, None if _is_local(writer) else (to_caller, to_owner))


async def _read(reader: asyncio.StreamReader, count: int) -> bytes:
    try:
        with anyio.fail_after(GREETING_TIMEOUT):
            return await reader.readexactly(count)
    except TimeoutError:
        raise
    except (OSError, asyncio.IncompleteReadError) as error:
        raise ConnectionLost from error


def _proof(key: bytes, role: str, name: str, nonces: bytes) -> bytes:
    return hmac.digest(key, encode_fields("mcp-sessions/hop", "v1", role, name) + nonces, "sha256")


def _is_local(writer: asyncio.StreamWriter) -> bool:
    own = writer.get_extra_info("socket")
    return bool(own.family == socket.AF_UNIX)
