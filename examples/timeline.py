"""What the demo prints: one line for each thing that happened, with the time since the start.

Colours where the output is a terminal that wants them (https://no-color.org), plain text everywhere else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TextIO

BOLD: Final = "1"
DIM: Final = "2"
RED: Final = "31"
GREEN: Final = "32"
YELLOW: Final = "33"
CYAN: Final = "36"


class Timeline:
    """Lines on a stream.

    Args:
        stream: Where they go.
        clock: Tells the time in seconds.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._start = clock()
        self._coloured = stream.isatty() and not os.environ.get("NO_COLOR")

    def title(self, text: str) -> None:
        """What the next lines are about."""
        self._write(f"\n{self._paint(BOLD, text)}")

    def source(self, line: str) -> None:
        """A line of a program."""
        self._write(f"    {self._paint(CYAN, line)}")

    def event(self, who: str, happened: str) -> None:
        """Something that is no request."""
        self._write(f"{self._time()}  {who:<8}     {happened}")

    def exchange(self, server: str, session: str, sent: str, came_back: str) -> None:
        """A request and what came back."""
        colour = YELLOW if came_back.startswith("refused") else GREEN
        self._write(f"{self._time()}  {server:<8}  {session}  {sent:<26} -> {self._paint(colour, came_back)}")

    def end(self, text: str, *, good: bool) -> None:
        """The last line."""
        self._write(f"\n{self._paint(GREEN if good else RED, text)}")

    def _time(self) -> str:
        return self._paint(DIM, f"{self._clock() - self._start:6.2f} s")

    def _paint(self, colour: str, text: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._coloured else text

    def _write(self, line: str) -> None:
        print(line, file=self._stream, flush=True)
