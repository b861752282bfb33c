"""A session that no token was minted for: what tests of sessions and handles are about does not hang on one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from mcp_sessions._session.claims import Principal
from mcp_sessions._session.data import Data, Namespace
from mcp_sessions._session.state import State
from mcp_sessions.stores.memory import MemoryStore


def no_data() -> Data:
    """An empty place in a store of its own."""
    return Data(MemoryStore(), Namespace("ses_abc", 2**40, 100), clock=lambda: 0, max_value_bytes=100)


class Known(NamedTuple):
    """What the token would say."""

    ref: str
    issued_at: int
    parent: str | None
    client: str | None = None
    trace: str | None = None


@dataclass
class Made:
    """What a session is made of; `ended` notes why it was ended, and whether with its descendants."""

    token: str
    ref: str = "ses_abc"
    created_at: int = 0
    ends_at: int = 60
    principal: Principal | None = None
    parent: str | None = None
    make_data: Callable[[], Data] = no_data
    said: bytes | None = None
    ended: list[tuple[str, bool]] = field(default_factory=list)

    @cached_property
    def claims(self) -> Known:
        return Known(self.ref, self.created_at, self.parent)

    @cached_property
    def state(self) -> State:
        return State(None, check=len)

    def data(self) -> Data:
        return self.make_data()

    async def capabilities(self) -> bytes | None:
        return self.said

    async def end(self, reason: str, *, descendants: bool) -> None:
        self.ended.append((reason, descendants))
