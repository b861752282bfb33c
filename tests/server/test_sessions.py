"""The operator's view: who has sessions, and ending them from outside the requests they serve."""

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from clients import SECRET, START, Clock
from failing import Failing
from sources import claims

from mcp_sessions import ConfigurationError, KeyRing, Principal, Sessions
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server import operator, option_types
from mcp_sessions._session.claims import AUDIENCE, floor_ms, utc
from mcp_sessions._session.endings import Ending
from mcp_sessions.stores import Claims, MemoryStore, Record, SQLiteStore
from mcp_sessions.stores._base import SessionStatus
from mcp_sessions.testing._contract import status_in, statuses_in

OLD = "the secret that signed before, at least 32 bytes"
ALICE = Principal(client_id="web", issuer="https://id.example", subject="alice")
BOB = Principal(client_id="web", issuer="https://id.example", subject="bob")
DAY = 24 * 3600
PUBLIC = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=
-----END PUBLIC KEY-----"""


class Deployment:
    """A store, the clock of its servers, and what they would mint and ask."""

    def __init__(self) -> None:
        self.clock = Clock(START + 0.25)
        self.store = Failing(clock=self.clock)
        self.sessions = Sessions(store=self.store, keys=[SECRET, OLD, PUBLIC], clock=self.clock)

    async def mint(
        self, jti: str, principal: Principal | None = None, *, secret: str = SECRET, record: bool = True
    ) -> Claims:
        """A session as a server mints it now, with a lifetime of a week."""
        key = KeyRing([secret]).signing
        now = floor_ms(self.clock.now)
        minted = claims(jti=jti, issued_at=now, expires_at=int(now) + 7 * DAY, subject=key.subject(principal))
        if record:
            hashes = None if principal is None else key.component_hashes(principal)
            await self.store.register(Record.of(minted, hashes))
        return minted

    async def live(self, *held: Claims) -> list[bool]:
        return [standing is SessionStatus.LIVE for standing in await statuses_in(self.store, held)]

    async def taken(self) -> list[tuple[str, str]]:
        """What a server's sweeper finds to do: a session's name, and why it ended."""
        ended = await self.store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=60, limit=100)
        return sorted((found.record.ref, Ending.from_text(found.reason).reason) for found in ended)


@pytest.fixture
def deployment() -> Deployment:
    return Deployment()


async def test_a_check_asks_the_store(deployment: Deployment) -> None:
    """It returns where the store answers, whatever it holds, and else raises what a request would."""
    await deployment.sessions.check()
    deployment.store.failing.add("get")
    with pytest.raises(StoreUnavailable):
        await deployment.sessions.check()


async def test_a_principal_s_sessions_are_listed_oldest_first(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under every key that was ever the first, since each has another name for them; all come page by page."""
    monkeypatch.setattr(operator, "PAGE", 2)
    newer = await deployment.mint("b", ALICE)
    deployment.clock.now -= 60
    older = await deployment.mint("a", ALICE, secret=OLD)
    made = [newer.ref, older.ref]
    for jti in "cd":
        made.append((await deployment.mint(jti, BOB)).ref)
        assert [record.ref for record in await deployment.sessions.of(ALICE)] == [older.ref, newer.ref]
        assert sorted(record.ref for record in await deployment.sessions.of()) == sorted(made)


async def test_missing_components_of_a_principal_match_anything(deployment: Deployment) -> None:
    one, other = await deployment.mint("a", ALICE), await deployment.mint("b", Principal("cli", None, "alice"))
    bob, nobody = await deployment.mint("c", BOB), await deployment.mint("d")
    alice = Principal(subject="alice")
    assert {record.ref for record in await deployment.sessions.of(alice)} == {one.ref, other.ref}
    await deployment.sessions.end_all(alice)
    assert await deployment.live(one, other, bob, nobody) == [False, False, True, True]


async def test_a_recorded_session_is_ended_by_its_public_name(deployment: Deployment) -> None:
    """Others stay; a server runs its `on_end` at once, with the reason that was given. What is not there says so."""
    one, other = await deployment.mint("a", ALICE), await deployment.mint("b", ALICE)
    unrecorded = await deployment.mint("c", record=False)
    ended = [await deployment.sessions.end(held.ref, reason="support") for held in (one, one, unrecorded)]
    assert ended == [True, False, False]
    assert await deployment.live(one, other, unrecorded) == [False, True, True]
    assert await deployment.taken() == [(one.ref, "support")]


async def test_sessions_are_read_a_page_at_a_time(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """`each` yields before the second page was asked for, and `count` reads no record."""
    monkeypatch.setattr(operator, "PAGE", 2)
    refs = {(await deployment.mint(name, ALICE)).ref for name in "abc"}
    limits: list[int] = []
    ask = deployment.store.list_sessions

    async def noted(**options: Any) -> list[Record]:
        limits.append(options["limit"])
        return await ask(**options)

    monkeypatch.setattr(deployment.store, "list_sessions", noted)
    found = deployment.sessions.each()
    first = await anext(found)
    assert limits == [2]
    assert {first.ref, *[record.ref async for record in found]} == refs
    assert limits == [2, 2]
    assert (await deployment.sessions.count(), limits) == (3, [2, 2])


async def test_another_audience_s_sessions_are_neither_seen_nor_ended(deployment: Deployment) -> None:
    one = await deployment.mint("a", ALICE)
    others = Sessions(store=deployment.store, keys=SECRET, audience="other", clock=deployment.clock)
    assert await others.of(ALICE) == []
    assert not await others.end(one.ref)
    await others.end_all(ALICE)
    await others.end_all_before(utc(int(deployment.clock.now)))
    assert await deployment.live(one) == [True]
    assert [record.ref for record in await deployment.sessions.of(ALICE)] == [one.ref]


async def test_all_sessions_of_a_principal_are_ended(deployment: Deployment) -> None:
    """Recorded or not, under every key, in this millisecond or long ago; a server runs `on_end` of recorded ones."""
    deployment.clock.now -= DAY
    long_ago = await deployment.mint("a", ALICE, secret=OLD, record=False)
    deployment.clock.now += DAY
    old, new = await deployment.mint("b", ALICE, secret=OLD), await deployment.mint("c", ALICE)
    bob, nobody = await deployment.mint("d", BOB), await deployment.mint("e")
    assert await deployment.sessions.end_all(ALICE) == (utc(START + 0.251), 2)
    deployment.clock.now += 0.001  # what is created a millisecond later lives
    held = long_ago, old, new, bob, nobody, await deployment.mint("f", ALICE, record=False)
    assert await deployment.live(*held) == [False, False, False, True, True, True]
    assert await deployment.taken() == sorted([(old.ref, "ended_all"), (new.ref, "ended_all")])
    assert await deployment.sessions.of(ALICE) == []


@pytest.mark.parametrize("lifetime", [None, 7 * DAY, timedelta(days=7)])
async def test_the_end_is_kept_as_long_as_a_session_could_last(lifetime: float | timedelta | None) -> None:
    """A century unless told otherwise, and a minute for clocks that disagree."""
    kept: list[tuple[float, int]] = []

    class Noting(MemoryStore):
        async def revoke_before(self, cutoff_time: float, *, expires_at: int, **of: Any) -> None:
            kept.append((cutoff_time, expires_at))

    options: dict[str, Any] = {} if lifetime is None else {"lifetime": lifetime}
    sessions = Sessions(store=Noting(), keys=SECRET, clock=Clock(START), **options)
    await sessions.end_all_before(utc(START))
    assert kept == [(START, START + (36_525 if lifetime is None else 7) * DAY + 60)]


async def test_everybody_s_sessions_before_a_moment_are_ended(deployment: Deployment) -> None:
    """Of named and of anonymous callers; later ones stay. It may be now: the present millisecond counts as a whole."""
    early = [await deployment.mint("a", ALICE), await deployment.mint("b", BOB), await deployment.mint("c")]
    deployment.clock.now += 9.75
    late = await deployment.mint("d", ALICE)
    await deployment.sessions.end_all_before(datetime(2027, 1, 15, 8, 0, 10, tzinfo=timezone.utc))
    assert await deployment.live(*early, late) == [False, False, False, True]
    deployment.clock.now += 0.0005
    await deployment.sessions.end_all_before(datetime.fromtimestamp(deployment.clock.now, timezone.utc))
    deployment.clock.now += 0.001
    assert await deployment.live(late, await deployment.mint("e")) == [False, True]


@pytest.mark.parametrize(
    ("moment", "complaint"),
    [
        (datetime(2026, 7, 28), "needs a time zone"),  # noqa: DTZ001  # what is refused
        (datetime(2027, 1, 15, 8, 0, 1, tzinfo=timezone.utc), "in the future"),
    ],
)
async def test_a_moment_that_means_something_else_is_refused(
    moment: datetime, complaint: str, deployment: Deployment
) -> None:
    """Local time differs from server to server; sessions that do not exist yet cannot be ended."""
    one = await deployment.mint("a")
    with pytest.raises(ConfigurationError, match=complaint):
        await deployment.sessions.end_all_before(moment)
    assert await deployment.live(one) == [True]


CLIENTS = Principal("web"), Principal("web", "https://id.example"), Principal(issuer="https://id.example")
TWICE = Principal("web", "https://id.example", "web", is_client=True), Principal("web", None, "web@clients")


async def test_sessions_of_a_client_are_not_ended_together(deployment: Deployment) -> None:
    """They may be of many users. They are listed, and each can be ended."""
    held = [await deployment.mint(jti, principal) for jti, principal in zip("abcde", CLIENTS + TWICE, strict=True)]
    for principal in CLIENTS + TWICE:
        with pytest.raises(ConfigurationError, match="a client, which many users may share"):
            await deployment.sessions.end_all(principal)
        assert await deployment.sessions.of(principal)
    assert await deployment.live(*held) == [True] * 5
    assert await deployment.sessions.end(held[0].ref)


@pytest.mark.parametrize("principal", [Principal(), "alice"])
async def test_a_principal_that_names_nobody_is_refused(principal: Any, deployment: Deployment) -> None:
    """Anonymous sessions belong to nobody, so nobody's can be told from another's; a bare name is no principal."""
    for call in (deployment.sessions.of(principal), deployment.sessions.end_all(principal)):
        with pytest.raises(ConfigurationError, match="needs a client_id, an issuer or a subject"):
            await call


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"store": "memory:"}, "pass the object that the middleware was given"),
        ({"store": "redis"}, "does not name a store"),
        ({"lifetime": float("nan")}, "lifetime=nan must be"),
        *(({"audience": wrong}, f"audience={wrong!r} must be printable ASCII") for wrong in ("", None)),
    ],
)
def test_options_that_would_end_nothing_are_refused(options: dict[str, Any], remedy: str) -> None:
    """A new memory knows none of the servers' sessions."""
    with pytest.raises(ConfigurationError, match=remedy):
        Sessions(**{"keys": SECRET, "store": MemoryStore(), **options})


async def test_without_keys_a_session_can_be_ended_and_no_principal_told(deployment: Deployment) -> None:
    """A session is found by its public name; a principal is stored as a keyed hash."""
    one = await deployment.mint("a", ALICE)
    sessions = Sessions(store=deployment.store, clock=deployment.clock)
    with pytest.raises(ConfigurationError, match="keys= is needed"):
        await sessions.of(ALICE)
    assert await sessions.end(one.ref)


async def test_it_opens_and_closes_what_it_was_given_by_name(tmp_path: Path) -> None:
    """A file that a server wrote to is seen, and let go of at the end; an object stays open."""
    path = tmp_path / "sessions.db"
    server = SQLiteStore(path, clock=Clock())
    await server.register(Record("ses_one", KeyRing([SECRET]).signing.subject(ALICE), START, START + DAY, START))
    for store in (server, f"sqlite:{path}", server):
        async with Sessions(store=store, keys=SECRET, clock=Clock()) as sessions:
            assert [record.ref for record in await sessions.of(ALICE)] == ["ses_one"]
    await server.close()


async def test_end_lasts_as_long_as_the_longest_lifetime() -> None:
    """The servers may allow a century, and an operator does not say what they allow."""
    clock = Clock(START)
    store = MemoryStore(clock=clock)
    key = KeyRing([SECRET]).signing
    held = claims(jti="a", issued_at=START, expires_at=START + option_types.CENTURY, subject=key.subject(ALICE))
    clock.now += 1
    await Sessions(store=store, keys=SECRET, clock=clock).end_all(ALICE)
    for _ in range(99):
        clock.now += 365 * DAY
        await store.revoke_before(START, audience="other", subject=None, expires_at=START)  # forgets what is over
        assert await status_in(store, held) is SessionStatus.ENDED
