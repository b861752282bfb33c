"""Open event streams: found when their session ends, here or elsewhere, and forgotten when they close."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from anyio.lowlevel import checkpoint
from clients import START

from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server import resumption as room
from mcp_sessions._server.resumption import Streams
from mcp_sessions._session.claims import SESSION, Claims
from mcp_sessions.stores._base import Record, SessionStatus
from mcp_sessions.stores._memory import MemoryStore

SOON = 0.001  # seconds between two looks
DEADLINE = 30  # seconds after which a test that hangs fails


def claims_of(name: str) -> Claims:
    return Claims(
        kind=SESSION,
        jti=name * 22,
        issued_at=START,
        expires_at=START + 60,
        subject=None,
        issuer="mcp-sessions",
        audience="mcp-sessions",
    )


A, B = claims_of("a"), claims_of("b")


class Open:
    """A stream that is open until it is cut."""

    def __init__(self, claims: Claims, *, ended_by_this_request: bool = False) -> None:
        self.claims = claims
        self.ended_by_this_request = ended_by_this_request
        self.is_cut = anyio.Event()

    def cancel(self, transport: str | None, request_id: bytes | None) -> None:
        """Which streams hear of it is what `test_resumption` shows."""

    async def terminate(self) -> None:
        self.is_cut.set()


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

    async def end(self, claims: Claims) -> None:
        """As another worker would."""
        await self.revoke(Record.of(claims), reason="logout", lease=60)


def opened(streams: Streams, *made: Open) -> list[Open]:
    for stream in made:
        streams.add(stream)
    return list(made)


async def is_still(streams: Streams) -> None:
    """Wait until nothing asks the store any more."""
    with anyio.fail_after(DEADLINE):
        while streams._polling:
            await checkpoint()


class TestEndedHere:
    async def test_all_streams_of_the_session_are_cut_and_no_others(self) -> None:
        streams = Streams(Store())
        one, two, other = opened(streams, Open(A), Open(A), Open(B))
        await streams.end(A.ref)
        assert (one.is_cut.is_set(), two.is_cut.is_set(), other.is_cut.is_set()) == (True, True, False)
        assert streams._open == {B.ref: [other]}

    async def test_the_stream_of_the_request_that_ends_it_goes_on(self) -> None:
        streams = Streams(Store())
        spared, other = opened(streams, Open(A, ended_by_this_request=True), Open(A))
        await streams.end(A.ref)
        assert (spared.is_cut.is_set(), other.is_cut.is_set()) == (False, True)
        assert streams._open == {A.ref: [spared]}

    async def test_they_are_cut_side_by_side(self) -> None:
        """A client that reads slowly does not keep the others waiting: the first waits here for the second."""
        streams = Streams(Store())
        second = Open(A)

        class Slow(Open):
            async def terminate(self) -> None:
                await second.is_cut.wait()

        opened(streams, Slow(A), second)
        with anyio.fail_after(DEADLINE):
            await streams.end(A.ref)

    async def test_a_session_without_streams_has_nothing_to_end(self) -> None:
        await Streams(Store()).end(A.ref)


class TestEndedElsewhere:
    async def test_it_is_found_by_asking(self) -> None:
        """Only the streams of the session that was ended are cut."""
        store = Store()
        streams = Streams(store, interval=SOON)
        stream, other = opened(streams, Open(A), Open(B))
        await store.end(A)
        with anyio.fail_after(DEADLINE):
            await stream.is_cut.wait()
        assert not other.is_cut.is_set()

    async def test_the_stream_of_the_request_that_ended_it_ended_by_this_request_there_too(self) -> None:
        """The look may come between the store's taking the end and this worker's knowing."""
        store = Store()
        streams = Streams(store, interval=SOON)
        spared, other = opened(streams, Open(A, ended_by_this_request=True), Open(A))
        await store.end(A)
        with anyio.fail_after(DEADLINE):
            await other.is_cut.wait()
        assert not spared.is_cut.is_set()

    async def test_nothing_is_asked_while_nothing_is_open(self) -> None:
        """The last stream that closes ends the asking, and the next one begins it again."""
        store = Store()
        streams = Streams(store, interval=SOON)
        for _ in range(2):
            (stream,) = opened(streams, Open(A))
            assert streams._polling
            streams.remove(stream)
            await is_still(streams)
        assert set(store.asked) <= {0}

    async def test_a_store_that_is_away_ends_nothing_and_is_asked_again(self) -> None:
        """Nobody knows, so the streams go on until somebody does."""
        store = Store()
        streams = Streams(store, interval=SOON)
        (stream,) = opened(streams, Open(A))
        await store.end(A)
        store.is_away = True
        with anyio.fail_after(DEADLINE):
            await store.was_asked.wait()
            assert not stream.is_cut.is_set()
            store.is_away = False
            await stream.is_cut.wait()

    async def test_many_sessions_are_asked_for_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each answer has to come within the time that a store is given."""
        monkeypatch.setattr(room, "BATCH", 2)
        store = Store()
        streams = Streams(store, interval=60)
        opened(streams, *(Open(claims_of(name)) for name in "abcde"), Open(A))
        await streams._check_once()
        assert store.asked == [2, 2, 1]


async def test_a_stream_that_closes_is_forgotten() -> None:
    """Also twice, and without the others of its session."""
    streams = Streams(Store())
    one, two = opened(streams, Open(A), Open(A))
    for _ in range(2):
        streams.remove(one)
        assert streams._open == {A.ref: [two]}
    streams.remove(two)
    assert streams._open == {}
