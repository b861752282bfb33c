"""Signing a user out everywhere, by the command that the documentation shows."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import SECRET, START, Client, Clock
from every_store import STORES
from pages import DOCS
from sources import claims

from mcp_sessions import ConfigurationError, KeyRing, Principal, Sessions
from mcp_sessions import _cli as cli
from mcp_sessions.stores import MemoryStore, SessionStatus, SQLiteStore, make
from mcp_sessions.testing._contract import status_in, statuses_in

[COMMAND] = re.findall(r"`mcp-sessions (end-all .*?)`", (DOCS / "stores.md").read_text("utf-8"))
ISSUER = "https://id.example"
EVERYWHERE = [("web", ISSUER), ("phone", ISSUER), ("web", "https://other.example"), ("web", None)]


def user(client_id: str, issuer: str | None, subject: str) -> Any:
    """A user as the SDK's authentication leaves it."""
    claims = {} if issuer is None else {"iss": issuer}
    token = SimpleNamespace(client_id=client_id, subject=subject, claims=claims)
    return SimpleNamespace(is_authenticated=True, access_token=token)


async def lives(app: Any, held: Any, who: Any) -> bool:
    answer = (await Client(app, user=who).tool("whoami", session=held)).json
    assert "result" in answer or answer["error"]["code"] == -32043
    return "result" in answer


@pytest.mark.parametrize("tracked", [False, True])
def test_command_of_the_page_ends_all_sessions_of_a_user(
    tracked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On two workers, with every client and issuer, recorded or not; others stay, and so does what begins later."""
    path, now = tmp_path / "sessions.db", Clock(1_800_000_000)
    monkeypatch.setenv("STORE", f"sqlite:{path}")
    monkeypatch.setenv("MCP_SESSIONS_KEYS", SECRET)
    monkeypatch.setattr("time.time", now)

    def run(*words: str) -> tuple[int, str]:
        code = cli.main([*words])
        return code, "".join(capsys.readouterr())

    async def with_workers(work: Callable[..., Any]) -> Any:
        stores = [SQLiteStore(path, clock=now) for _ in range(2)]
        options = {"tracked": tracked, "clock": now, "store_timeout": 10}
        answer = await work(*(sessions(Server(), store=store, **options) for store in stores))
        for store in stores:
            await store.close()
        return answer

    alices = [user(client, issuer, "alice") for client, issuer in EVERYWHERE]
    others = [user("web", ISSUER, "bob"), user("alice", ISSUER, "carol"), user("web", ISSUER, "Alice")]

    async def begin(one: Any, _: Any) -> Any:
        return [await Client(one, user=who).create() for who in (*alices, *others)]

    async def check(one: Any, other: Any) -> None:
        for held, who in zip(made, (*alices, *others), strict=True):
            assert [await lives(app, held, who) for app in (one, other)] == [who in others] * 2
        for who in alices:
            again = await Client(one, user=who).create()
            assert await lives(other, again, who)

    made = anyio.run(with_workers, begin)
    now.now += 60
    code, printed = run(*shlex.split(COMMAND))
    assert code == 0
    assert "2027-01-15T08:01:00" in printed
    assert f"recorded       {4 * tracked}\n" in printed
    now.now += 1
    anyio.run(with_workers, check)
    code, nothing = run(*shlex.split(COMMAND.replace("alice", "nobody")))
    assert (code, "recorded       0\n" in nothing) == (0, True)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_sessions_asked_for_together_keep_their_own_status(tmp_path: Path) -> None:
    """As a worker asks for those whose streams it serves: with aliases and without, in one question."""
    key = KeyRing([SECRET]).signing
    whose = Principal("web", ISSUER, "alice"), None, Principal("web", ISSUER, "bob"), Principal(subject="alice")
    held = [
        claims(jti=jti, issued_at=START + 100, subject=key.subject(one), aliases=key.aliases(one))
        for jti, one in zip("abcd", whose, strict=True)
    ]
    store = make(f"sqlite:{tmp_path / 'sessions.db'}", clock=Clock(START), timeout=10)
    assert await statuses_in(store, held) == [SessionStatus.LIVE] * 4
    await Sessions(store=store, keys=SECRET, clock=Clock(START + 200)).end_all(Principal(subject="alice"))
    ended, live = SessionStatus.ENDED, SessionStatus.LIVE
    assert await statuses_in(store, held) == [ended, live, live, ended]
    assert await statuses_in(store, held[1:3]) == [live, live]
    assert [await status_in(store, one) for one in held] == [ended, live, live, ended]
    await store.close()


NARROW: list[tuple[Principal, list[bool]]] = [
    (Principal(subject="alice"), [True, True, True, True]),
    (Principal(issuer=ISSUER, subject="alice"), [True, True, False, False]),
    (Principal(client_id="web", subject="alice"), [True, False, True, True]),
    (Principal("web", ISSUER, "alice"), [True, False, False, False]),
    (Principal("phone", "https://other.example", "alice"), [False] * 4),
    (Principal(subject="web"), [False] * 4),
]


@pytest.mark.parametrize("kind", ["draft", "cookie", "user"])
async def test_parts_of_a_principal_that_are_left_out_match_any(kind: str) -> None:
    """Of sessions that nothing records, whatever names them, on a worker that did not begin them."""
    clock = Clock()
    for principal, ended in NARROW:
        store = MemoryStore(clock=clock)
        one, other = (
            sessions(Server(), store=store, clock=clock, **{"transport.per_user": "fallback"}) for _ in range(2)
        )
        users = [user(client, issuer, "alice") for client, issuer in EVERYWHERE]
        headers = [
            [(await Client(one, user=who).send("server/discover")).cookie] if kind == "cookie" else [] for who in users
        ]
        held = [await Client(one, user=who).create() if kind == "draft" else None for who in users]

        async def ref(app: Any, place: int) -> Any:
            answer = (await Client(app, user=users[place]).tool("whoami", *headers[place], session=held[place])).json  # noqa: B023
            return answer["result"]["content"] if "result" in answer else "ended"

        before = [await ref(one, place) for place in range(len(users))]
        await Sessions(store=store, keys=SECRET, clock=clock).end_all(principal)
        after = [await ref(other, place) for place in range(len(users))]
        assert [new != old for new, old in zip(after, before, strict=True)] == ended
        clock.now += 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("parts", [{}, {"client_id": "web"}, {"issuer": ISSUER}])
async def test_session_recorded_during_the_command_has_ended(
    kind: str, parts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was created before the cut-off, but no list had it yet."""
    clock = Clock()
    store = STORES[kind](clock, tmp_path)
    recorded = store.register
    alice = user("web", ISSUER, "alice")

    async def register(record: Any, **options: Any) -> None:
        if not cut:
            cut.append(1)
            await Sessions(store=store, keys=SECRET, clock=clock).end_all(Principal(subject="alice", **parts))
        await recorded(record, **options)

    cut: list[int] = []
    monkeypatch.setattr(store, "register", register, raising=False)
    app = sessions(Server(), store=store, clock=clock, tracked=True, store_timeout=10)
    try:
        held = await Client(app, user=alice).create()
        clock.now += 1
        assert cut
        assert [await lives(app, held, alice) for _ in range(2)] == [False, False]
        assert await lives(app, await Client(app, user=alice).create(), alice)
    finally:
        await store.close()


NOBODY: list[Any] = [
    *(Principal(subject=blank) for blank in ("", " ", "\t")),
    *(Principal(subject=wrong) for wrong in (b"alice", 7, ["alice"])),  # type: ignore[arg-type]
    Principal("web", None, ""),
    Principal("", None, "alice"),
    Principal(None, " ", "alice"),
    Principal(None, ["issuer"], "alice"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("place", range(len(NOBODY)))
async def test_part_that_is_no_text_is_refused(place: int) -> None:
    """It would be another principal than the servers see, so that nothing ends."""
    for call in ("end_all", "of"):
        with pytest.raises(ConfigurationError, match=r"a Principal whose .* is a"):
            await getattr(Sessions(store=MemoryStore(), keys=SECRET), call)(NOBODY[place])


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """The command, and a store with a session of Alice, which the audience `shop` has recorded."""
    path, now = tmp_path / "sessions.db", Clock()
    monkeypatch.setenv("KEYS", SECRET)
    monkeypatch.setattr("time.time", now)

    async def create() -> None:
        store = SQLiteStore(path, clock=now)
        app = sessions(Server(), store=store, tracked=True, audience="shop", clock=now, store_timeout=10)
        await Client(app, user=user("web", ISSUER, "alice")).create()
        await store.close()

    anyio.run(create)

    def called(*words: str) -> tuple[int, str]:
        code = cli.main(["end-all", "--store", f"sqlite:{path}", "--keys", "env:KEYS", *words])
        return code, "".join(capsys.readouterr())

    return called


@pytest.mark.parametrize(
    "words",
    [
        ["--subject="],
        ["--subject", " "],
        ["--subject", "alice", "--client-id="],
        ["--subject", "alice", "--issuer", "\t"],
    ],
)
def test_command_refuses_a_blank_part(words: list[str], run: Callable[..., tuple[int, str]]) -> None:
    code, printed = run("--audience", "shop", *words)
    assert (code, "is a blank text" in printed) == (2, True)


def test_command_claims_no_end_that_it_cannot_see(run: Callable[..., tuple[int, str]]) -> None:
    """It says what is refused from now on, and what would make that nothing."""
    code, printed = run("--audience", "shop", "--subject", "nobody")
    assert code == 0
    assert not printed.startswith("ended")
    assert "have ended" not in printed
    assert "every worker refuses the principal's sessions created before 2027-01-15" in printed
    assert "in the audience shop and under these keys" in printed
    assert "nothing has ended if the servers use another audience or other keys" in printed
    assert "--audience" not in printed
    code, printed = run("--audience", "shop", "--subject", "alice")
    assert printed.startswith("ended          the principal's sessions")
