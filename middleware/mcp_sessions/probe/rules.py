"""The rules that a server is held to, in the order in which they are tried, each with the clause that asks for it.

This table is the probe: the report and the documentation are rendered from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from . import checks
from .checks import Act


@dataclass(frozen=True)
class Rule:
    """One thing that has to hold.

    Args:
        says: What holds, in a sentence.
        clause: Where that is asked for.
        act: What is done to see it.
    """

    says: str
    clause: str
    act: Act

    @property
    def name(self) -> str:
        """What reports call it."""
        return self.act.__name__.replace("_", "-")


RULES: Final = (
    Rule("the capabilities say that there are sessions", "draft: Capabilities", checks.advertised),
    Rule("a session is created, its id visible ASCII", "draft: Creating Sessions, Data Types", checks.create),
    Rule("no two sessions have one id", "draft: Data Types", checks.unique),
    Rule("expiresAt is an ISO 8601 time", "draft: Schema", checks.hint),
    Rule("creating within a session is refused, -32602", "draft: Creating Sessions", checks.create_within),
    Rule("a result names the session of its request", "draft: Using Sessions 2-4", checks.use),
    Rule("a state that was given out is taken back", "draft: Creating Sessions", checks.state),
    Rule("a request in no session is answered in none", "draft: Using Sessions 1", checks.without),
    Rule("parallel requests get their own session", "draft: Using Sessions 1, 3", checks.parallel),
    Rule("a sessionId that is no text is refused, -32602", "draft: Schema", checks.malformed),
    Rule("an unknown session is not found, -32043", "draft: Schema", checks.unknown),
    Rule("a forged session is not found, -32043", "draft: Schema, Data Types", checks.forged),
    Rule("unknown and forged look alike", "draft: Data Types (hijacking)", checks.alike),
    Rule("an id that is far too long is refused", "draft: Data Types (hijacking)", checks.oversized),
    Rule("a header that contradicts the body is refused", "SEP-2243; MCP 2026-07-28: -32020", checks.wrong_header),
    Rule("a header that repeats the body passes", "SEP-2243", checks.mirrored),
    Rule("an envelope that is not whole is refused", "MCP 2026-07-28: -32602", checks.envelope),
    Rule("an Mcp-Method that is not the method is refused", "MCP 2026-07-28: -32020", checks.wrong_method),
    Rule("deleting nothing is refused, -32602", "draft: Deleting Sessions", checks.delete_nothing),
    Rule("a session is deleted, the result empty", "draft: Deleting Sessions", checks.delete),
    Rule("a deleted session is not found, -32043", "draft: Schema", checks.replay),
    Rule("nor can it be deleted again", "draft: Schema", checks.delete_again),
    Rule("the other session lives", "draft: Deleting Sessions", checks.survivor),
    Rule("a list of sessions holds no id", "extension: list", checks.listed),
    Rule("a fork is a session of its own", "extension: fork", checks.fork),
    Rule("forks end with their root", "extension: descendants", checks.descendants),
)
