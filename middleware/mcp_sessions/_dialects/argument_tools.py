"""The tools of a server with one more argument: lists as they leave, and what a process knows of them.

A call may reach a worker that has never sent the list. So if that counts, the worker reads the server's own list.
"""

from __future__ import annotations

import json
from typing import Any, Final

from .._protocol.methods import TOOLS
from .._protocol.rewrite import Answer
from .._protocol.tools import ToolList, extend_list
from .._server.answers import ask
from .._server.context import Request
from .._server.logs import warn_once
from .._server.response import Change, Response

MAX_TOOLS: Final = 10_000  # that one process knows
MAX_PAGES: Final = 100  # of a list that is read for one tool
DESCRIPTION: Final = 'The session from an earlier result of this server in this conversation, unchanged; or "new".'
_LEFT_ALONE: Final = (
    "these tools get no argument %a, since their schemas have one of that name or may refuse another: %s; their calls "
    "are in a session only if the client identifies one in another way"
)
_SHOWN: Final = 10  # names in the log


class KnownTools:
    """Which tools have the argument, as far as this process knows.

    Args:
        argument: The name of the argument.
    """

    def __init__(self, argument: str) -> None:
        self.argument: Final = argument
        self.own_name: Final = f"begin_{argument}"
        self._own_tool: Final = json.dumps(own_tool(self.own_name, argument)).encode()
        self._schema: Final = json.dumps({"type": "string", "description": DESCRIPTION}).encode()
        self._carries: Final = dict[str, bool]()  # whether a tool has the argument, by its name, as it was last listed
        self._has_seen_all = False  # whether the list was seen to its end

    def extended(self, answer: Answer, *, is_first: bool) -> ToolList | None:
        """Return a page of a list as it leaves, or None if it is unreadable; remember which tools have the argument."""
        own = (self.own_name, self._own_tool) if is_first and self.own_name not in self._carries else None
        page = extend_list(answer, self.argument, self._schema, own)
        if page is None:
            return None
        if len(self._carries) + len(page.carries) > MAX_TOOLS:
            self._carries.clear()
        self._carries.update(page.carries)
        if left_alone := sorted(name for name, carries in page.carries.items() if not carries):
            names = ", ".join(map(ascii, left_alone[:_SHOWN]))
            warn_once(f"argument {self.argument}", _LEFT_ALONE, self.argument, names)
        return page

    async def have_argument(self, request: Request, tool: str | None) -> bool:
        """Return whether a tool has the argument; if that cannot be learnt, it has."""
        if tool not in self._carries and not await self._read(request, tool):
            return True
        return self._carries.get(tool or "", False)

    async def has_own(self, request: Request) -> bool:
        """Return whether the tool that begins a session is ours, and not one of the server's of the same name."""
        if not self._has_seen_all and self.own_name not in self._carries:
            self._has_seen_all = await self._read(request, None)
        return self.own_name not in self._carries

    async def _read(self, request: Request, tool: str | None) -> bool:
        """Read the server's list in the caller's name, as far as a tool or to its end; return False if that fails."""
        cursor: str | None = None
        for number in range(MAX_PAGES):
            answer = (await ask(request, TOOLS, {} if cursor is None else {"cursor": cursor})).answer
            page = None if answer is None else self.extended(answer, is_first=number == 0)
            if page is None:
                return False
            if page.cursor is None or tool in page.carries:
                break
            cursor = page.cursor
        return True


class AddArgument(Change, kw_only=True):
    """A list of tools with the argument."""

    tools: KnownTools
    is_first: bool  # page

    async def on_answer(self, answer: Answer, response: Response) -> bytes | None:
        """Return the page with the argument in each schema that allows it."""
        page = self.tools.extended(answer, is_first=self.is_first)
        return None if page is None else page.text


def own_tool(name: str, argument: str) -> dict[str, Any]:
    """Return the tool that begins a session, for parallel first calls and for hosts that show no text."""
    return {
        "name": name,
        "description": f"Start a session with this server, to pass as `{argument}` to its other tools.",
        "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
        "outputSchema": {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]},
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    }
