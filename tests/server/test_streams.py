"""Open event streams: found when their session ends, here or elsewhere, and forgotten when they close."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from anyio.lowlevel import checkpoint
from clients import DEADLINE, START
from openstreams import OpenStream
from sources import claims

from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server import resumption as room
from mcp_sessions._server.resumption import Streams
from mcp_sessions._session.claims import Claims
from mcp_sessions.stores._base import Record, SessionStatus
from mcp_sessions.stores._memory import MemoryStore

SOON = 0.001  # seconds between two looks


A, B = claims(jti="a" * 22), claims(jti="b" * 22)


class Store(MemoryStore):
    """A store that may be away, and writes down what it was asked."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: START)
        self.is_away = False
        self.asked: list[int] = []
        self.was_asked = anyio.Event()

    async def statuses(self, claims: Sequence[Claims]) -> list[SessionStatus]:
        self.asked.append(len(claims))
        self.was_asked.set()
        if self.is_away:
            raise StoreUnavailable
        return await super().statuses(claims)


class TestEndedHere:
    async def test_all_streams_of_the_session_are_cut_but_that_of_the_request_that_ends_it(self) -> None:
        """Side by side: a client that reads slowly does not keep the others waiting. Also where there are none."""
        streams = Streams(Store())
        await streams.end(A.ref)

        class Slow(OpenStream):
            async def terminate(self) -> None:
                await one.cut.wait()

        Slow(streams, A)
        one, other = OpenStream(streams, A), OpenStream(streams, B)
        spared = OpenStream(streams, A, ended_by_this_request=True)
        with anyio.fail_after(DEADLINE):
            await streams.end(A.ref)
        assert [one.is_cut, other.is_cut, spared.is_cut] == [True, False, False]
        left = {ref: [*of_session.values()] for ref, of_session in streams._open.items()}
        assert left == {A.ref: [spared.request], B.ref: [other.request]}


class TestEndedElsewhere:
    async def test_it_is_found_by_asking_again_where_the_store_is_away(self) -> None:
        """Only the streams of the session are cut, but for one whose request ended it, which is not known here yet."""
        store = Store()
        streams = Streams(store, interval=SOON)
        stream, other = OpenStream(streams, A), OpenStream(streams, B)
        spared = OpenStream(streams, A, ended_by_this_request=True)
        await store.revoke(Record.of(A), reason="logout", lease=60)
        store.is_away = True
        with anyio.fail_after(DEADLINE):
            await store.was_asked.wait()
            assert not stream.is_cut
            store.is_away = False
            await stream.cut.wait()
        assert (other.is_cut, spared.is_cut) == (False, False)

    async def test_nothing_is_asked_while_nothing_is_open(self) -> None:
        """The last stream that closes ends the asking, and the next one begins it again."""
        store = Store()
        streams = Streams(store, interval=SOON)
        for _ in range(2):
            stream = OpenStream(streams, A)
            assert streams._polling
            streams.remove(stream.request, stream.terminate)
            with anyio.fail_after(DEADLINE):
                while streams._polling:
                    await checkpoint()
        assert set(store.asked) <= {0}

    async def test_many_sessions_are_asked_for_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each answer has to come within the time that a store is given."""
        monkeypatch.setattr(room, "BATCH", 2)
        store = Store()
        streams = Streams(store, interval=60)
        for name in "abcdea":
            OpenStream(streams, claims(jti=name * 22))
        await streams._check_once()
        assert store.asked == [2, 2, 1]
