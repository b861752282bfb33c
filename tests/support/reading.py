"""A reader of feeds, as `mcp-sessions watch` is one."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from mcp_sessions.telemetry._feed import event_in, sockets

PATIENCE = 60  # seconds for a line, on a loaded machine


class Reader:
    """Who reads the one feed in a directory."""

    def __init__(self, folder: Path) -> None:
        (path,) = sockets(folder)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rb")
        self.worker: str = self.next()["worker"]

    def next(self) -> dict[str, Any]:
        """The next event, which the command understands."""
        line = self._lines.readline()
        assert event_in(line) is not None
        event: dict[str, Any] = json.loads(line)
        return event

    def rest(self) -> list[dict[str, Any]]:
        """All that comes until the worker ends the connection."""
        lines = self._lines.readlines()
        self.leave()
        return [json.loads(line) for line in lines]

    def leave(self) -> None:
        self._lines.close()
        self._socket.close()
