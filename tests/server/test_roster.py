"""What a principal is shown of its own sessions, and how it ends them all."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import SECRET, SESSION_KEY, START, Client, Clock

from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server import lifecycle, methods
from mcp_sessions.stores._base import FIRST, Position, Record
from mcp_sessions.stores._memory import MemoryStore

NEW = "the secret that signs from now on, at least 32 bytes"


class Deployment:
    """A server with tracked sessions, and clients that are whoever they say."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.store: MemoryStore = options.pop("store", MemoryStore(clock=self.clock))
        self.options = {"tracked": True, "lifetime": 3600, **options}
        self.app = self.worker()

    def worker(self, **options: Any) -> Any:
        """The middleware of one process."""
        return sessions(
            Server(),
            principal=lambda scope: scope.get("who"),
            clock=self.clock,
            store=self.store,
            **{**self.options, **options},
        )

    def client(self, who: str | None = "alice", *, modern: bool = True, **options: Any) -> Client:
        """Somebody's client, on a worker of its own where there are options."""
        return Client(self.worker(**options) if options else self.app, modern=modern, who=who)


async def refs(client: Client) -> list[str]:
    """What a client is shown, on however many pages."""
    shown: list[str] = []
    params: dict[str, str] = {}
    while True:
        page = (await client.send("sessions/list", params)).result
        shown += [session["ref"] for session in page["sessions"]]
        if "nextCursor" not in page:
            return shown
        params = {"cursor": page["nextCursor"]}


async def sweep(app: Any) -> None:
    """Look once for what has ended, and finish it and whatever the server's own look has found."""
    await app._options.sweeper.sweep()
    await app._options.sweeper.stop()


async def subject_of(client: Client) -> str:
    """The name under which the store knows a client's principal."""
    return str((await client.app._options.store.roster(audience="mcp-sessions", limit=1))[0][0].subject)  # type: ignore[attr-defined]


async def ref_of(client: Client, session: Any) -> str:
    return str((await client.tool(session=session)).result["content"])


async def test_servers_of_different_audiences_may_share_keys_and_a_store() -> None:
    """Nobody is shown another server's sessions, ends them, or runs their `on_end`."""
    freed: list[tuple[str, str]] = []
    deployment = Deployment()
    shop, bank = (
        deployment.worker(audience=name, on_end=lambda session, reason, name=name: freed.append((name, reason)))
        for name in ("shop", "bank")
    )
    in_shop, in_bank = Client(shop, modern=True, who="alice"), Client(bank, modern=True, who="alice")
    await in_shop.create()
    held = await in_bank.create()
    ref = await ref_of(in_bank, held)
    await in_shop.send("sessions/end_all")
    await sweep(shop)
    assert freed == [("shop", "ended_all")]
    assert (await refs(in_shop), await refs(in_bank)) == ([], [ref])
    deployment.clock.now += 3600
    for app in (shop, bank):
        await sweep(app)
    assert freed == [("shop", "ended_all"), ("bank", "expired")]


# --- shown ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("modern", [False, True])
async def test_sessions_are_shown_by_public_names_and_times(modern: bool) -> None:
    """Oldest first; when it was made, last seen and will end; never an id."""
    deployment = Deployment()
    alice = deployment.client(modern=modern)
    one = await alice.create()
    deployment.clock.now += 90
    other = await alice.create()
    ref = await ref_of(alice, one)
    answer = await alice.send("sessions/list")
    assert answer.result.get("resultType") == ("complete" if modern else None)
    shown = answer.result["sessions"]
    assert shown[0] == {
        "ref": ref,
        "createdAt": "2027-01-15T08:00:00Z",
        "lastSeenAt": "2027-01-15T08:01:30Z",
        "expiresAt": "2027-01-15T09:00:00Z",
    }
    assert shown[1]["ref"] == await ref_of(alice, other)
    assert b"sessionId" not in answer.body
    assert one["sessionId"].encode() not in answer.body


async def test_everybody_is_shown_their_own() -> None:
    """Whichever worker is asked, and under whichever key they were signed."""
    deployment = Deployment()
    alice, bob, rolled = deployment.client(), deployment.client("bob"), deployment.client(keys=[NEW, SECRET])
    mine, theirs = await ref_of(alice, await alice.create()), await ref_of(bob, await bob.create())
    newer = await ref_of(rolled, await rolled.create())
    assert await refs(alice) == [mine]
    assert sorted(await refs(rolled)) == sorted([mine, newer])
    assert await refs(bob) == [theirs]
    assert await refs(deployment.client("carol")) == []


async def test_the_session_that_asks_is_marked_and_echoed() -> None:
    """A program learns which one is itself; a fork is shown with the root of its lineage."""
    alice = Deployment().client()
    root = await alice.create()
    fork = await alice.fork(root)
    answer = await alice.send("sessions/list", session=root)
    by_ref = {shown["ref"]: shown for shown in answer.result["sessions"]}
    shown_root, shown_fork = by_ref[await ref_of(alice, root)], by_ref[await ref_of(alice, fork)]
    assert answer.result["_meta"][SESSION_KEY]["sessionId"] == root["sessionId"]
    assert (shown_root.get("current"), shown_fork.get("current")) == (True, None)
    assert (shown_root.get("root"), shown_fork.get("root")) == (None, shown_root["ref"])


async def test_what_has_ended_is_not_shown() -> None:
    """Deleted, expired, or idle, though nobody has looked for idle ones yet."""
    deployment = Deployment(idle_timeout=600)
    alice = deployment.client()
    deleted, idle = await alice.create(), await alice.create()
    await alice.delete(deleted)
    assert await refs(alice) == [await ref_of(alice, idle)]
    deployment.clock.now += 660
    live = await alice.create()
    assert await refs(alice) == [await ref_of(alice, live)]
    deployment.clock.now = START + 660 + 3600
    assert await refs(alice) == []


async def test_lists_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins where the last one ended, also where that session has gone and a new one has come."""
    monkeypatch.setattr(methods, "PAGE", 2)
    deployment = Deployment()
    alice = deployment.client()
    made = []
    for _ in range(5):
        made.append(await alice.create())
        deployment.clock.now += 1
    names = [await ref_of(alice, session) for session in made]
    assert await refs(alice) == names
    first = (await alice.send("sessions/list")).result
    await alice.delete(made[1])
    rest = (await alice.send("sessions/list", {"cursor": first["nextCursor"]})).result
    assert [session["ref"] for session in rest["sessions"]] == names[2:4]
    foreign = await deployment.client("bob").send("sessions/list", {"cursor": first["nextCursor"]})
    assert foreign.result["sessions"] == []


@pytest.mark.parametrize("cursor", [7, "", "next", "MQ", "MSBz=", "LTEgc2Vz", ["MSBz"], True, "MSBz\u00e9", "_w"])
async def test_a_cursor_is_one_that_was_given_out(cursor: object) -> None:
    alice = Deployment().client()
    assert (await alice.send("sessions/list", {"cursor": cursor})).error["code"] == -32602
    assert "sessions" in (await alice.send("sessions/list", {"cursor": "MSBz"})).result


# --- ended ---------------------------------------------------------------------------------------


async def test_all_of_a_principal_s_sessions_end_and_nobody_else_s() -> None:
    """Transport sessions and forks, too; on every worker once it is answered; what is created afterwards lives."""
    deployment = Deployment()
    alice, bob, legacy = deployment.client(), deployment.client("bob"), deployment.client(modern=False)
    own, other = await alice.create(), await bob.create()
    fork = await alice.fork(own)
    named = (await legacy.send("initialize")).headers[b"mcp-session-id"]
    answer = await alice.send("sessions/end_all", session=own)
    assert answer.result == {"resultType": "complete"}
    elsewhere = deployment.client(token_cache=0)
    for session in (own, fork):
        assert (await elsewhere.tool(session=session)).error["data"]["reason"] == "ended"
    assert (await legacy.tool("whoami", (b"mcp-session-id", named))).status == 404
    assert (await bob.tool(session=other)).session is not None
    assert (await alice.tool(session=await alice.create())).session is not None


async def test_a_session_that_is_forked_meanwhile_ends_too() -> None:
    """Whoever holds a stolen session cannot save it by forking it in time."""

    class Racing(MemoryStore):
        racer: Any = None

        async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:
            racer, self.racer = self.racer, None
            if racer is not None:
                await racer()
            return await super().revoke(ref, audience=audience, expires_at=expires_at, reason=reason, lease=lease)

    store = Racing(clock=Clock())
    alice = Deployment(store=store).client()
    stolen = await alice.create()
    saved: list[Any] = []

    async def race() -> None:
        saved.append(await alice.fork(stolen))

    store.racer = race
    await alice.send("sessions/end_all")
    assert (await alice.tool(session=saved[0])).error["code"] == -32043


async def test_a_thief_that_goes_on_forking_keeps_nothing() -> None:
    """However many sessions are of this second, and however fast they are forked meanwhile; what comes later lives."""
    deployment = Deployment()
    alice, thief = deployment.client(), deployment.client()
    stolen = [await alice.create()]
    for _ in range(lifecycle.NAMED * lifecycle.ROUNDS):
        stolen.append(await thief.fork(stolen[-1]))

    async def steal() -> None:
        while "result" in (answer := await thief.send("sessions/fork", {"mode": "share"}, session=stolen[-1])).json:
            stolen.append({**answer.result["session"]})
            await anyio.lowlevel.checkpoint()
        assert answer.error["data"]["reason"] == "ended"  # and not that there are too many

    async with anyio.create_task_group() as group:
        group.start_soon(steal)
        with anyio.fail_after(10):
            assert (await alice.send("sessions/end_all")).status == 200
    for session in stolen[-50:]:
        session.pop("expiresAt", None)
        assert (await alice.tool(session=session)).error["data"]["reason"] == "ended"
    deployment.clock.now += 1
    assert (await alice.send("sessions/list")).result["sessions"] == []
    assert (await alice.tool(session=await alice.create())).session is not None


@pytest.mark.parametrize(("later", "ahead", "status"), [(1, 3600, 200), (100, 5, 503)])
async def test_sessions_that_another_server_dates_later_end_too(later: int, ahead: int, status: int) -> None:
    """As long as they come to an end, however far ahead; else nobody is told that all have ended."""

    class Ahead(MemoryStore):
        left = lifecycle.ROUNDS + later

        async def sessions(self, subject: str, *, after: Position = FIRST, **given: Any) -> list[Record]:
            self.left -= 1
            deployment.clock.now += 10
            return [Record("later", subject, after[0] + ahead, START + 3600, START)] if self.left >= 0 else []

    deployment = Deployment(store=Ahead(clock=Clock()))
    with anyio.fail_after(30):
        assert (await deployment.client().send("sessions/end_all")).status == status


async def test_many_sessions_are_refused_at_once_and_freed_off_the_request() -> None:
    """One write ends what was there before this second; then `on_end` runs for each, as when few end."""
    freed: list[str] = []
    deployment = Deployment(on_end=lambda session, reason: freed.append(reason))
    alice = deployment.client()
    made = [await alice.create() for _ in range(2 * lifecycle.TIDIED + 1)]
    deployment.clock.now += 1
    made.append(await alice.create())
    subject = await subject_of(alice)
    await alice.send("sessions/end_all")
    left = await deployment.store.sessions(subject, audience="mcp-sessions", cut_off=True)
    assert len(left) == lifecycle.TIDIED + 1
    assert {(await alice.tool(session=one)).error["code"] for one in made} == {-32043}
    with anyio.fail_after(10):
        while await deployment.store.sessions(subject, audience="mcp-sessions", cut_off=True):  # noqa: ASYNC110  # it rests between pages
            await anyio.sleep(0.001)
    await sweep(deployment.app)
    assert freed == ["ended_all"] * len(made)


async def test_a_store_that_fails_meanwhile_is_asked_again() -> None:
    """All have ended by then, so nobody is told; what they hold is freed when the store answers."""
    freed: list[str] = []

    class Away(MemoryStore):
        left = 2

        async def revoke(self, ref: str, **given: Any) -> bool:
            if ref in self._records and len(self._revoked) > lifecycle.TIDIED and self.left:
                self.left -= 1
                raise StoreUnavailable
            return await super().revoke(ref, **given)

    deployment = Deployment(on_end=lambda session, reason: freed.append(reason), store=Away(clock=Clock()))
    object.__setattr__(deployment.app._options.terminator, "pause", 0.001)
    alice = deployment.client()
    for _ in range(lifecycle.TIDIED + 5):
        await alice.create()
    deployment.store._clock.now += 1  # type: ignore[attr-defined]
    deployment.clock.now += 1
    assert (await alice.send("sessions/end_all")).status == 200
    while len(freed) < lifecycle.TIDIED + 5:
        await anyio.sleep(0.005)
        await sweep(deployment.app)


# --- to whom -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sessions/list", "sessions/end_all"])
async def test_who_is_nobody_has_no_sessions_of_its_own(method: str) -> None:
    """Anonymous sessions belong to whoever holds them, and those are not one."""
    nobody = Deployment().client(None)
    session = await nobody.create()
    for carried in (None, session):
        assert (await nobody.send(method, session=carried)).error["code"] == -31046
    assert (await nobody.tool(session=session)).session is not None


@pytest.mark.parametrize("method", ["sessions/list", "sessions/end_all"])
@pytest.mark.parametrize("options", [{"tracked": False}, {"extensions": ("fork",)}])
async def test_where_it_is_not_offered_the_method_is_the_server_s_own(method: str, options: dict[str, Any]) -> None:
    """Nothing is recorded, or it was not asked for."""
    alice = Deployment(**options).client()
    assert (await alice.send(method)).error["code"] == -32601
    told = (await alice.send("server/discover")).result["capabilities"]["experimental"]["sessions"]
    assert not told.keys() & {"list", "endAll"}
