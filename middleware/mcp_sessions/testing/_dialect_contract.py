"""The contract of a dialect as a suite of tests, which every dialect of this package passes.

class TestInQuery(DialectContract):
    options = {"dialects": [InQuery()]}
    begins = Call("query/begin")

    def held(self, answer):
        return Held(answer.result["query"])

    def carry(self, held, call):
        call.query = f"session={held.id}".encode()
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import pytest

from .._protocol.jsonrpc import SESSION_KEY
from .._server.middleware import MCPSessionMiddleware
from .._server.options import Telemetry
from .._session.events import SessionCreated, SessionEvent
from .._session.session import EndedSession, Session
from ..stores._memory import MemoryStore
from ._contract import DAY, Clock
from ._dialect_peers import Answer, Call, Client, Server, user_of

KEY: Final = "the-key-of-the-contract-0123456789-abcdefgh"
NOT_FOUND: Final = -32043
REQUIRED: Final = {-31044, -31046}
MISMATCH: Final = -32020
NO_ID: Final = "the clients of this dialect hold no session id"


@dataclass(frozen=True)
class Held:
    """What a client holds of its session.

    Args:
        id: The session id, or None if the client holds none.
        more: What it holds besides.
    """

    id: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


class DialectContract:
    """How the clients of a dialect speak, in the class attributes and the first methods, and what then holds.

    Attributes:
        options: The options of the middleware, with the dialect among them.
        modern: Whether clients speak the modern era's protocol.
        begins: The request that begins a session, or None if the first request of a client does.
        ends: The request by which a client ends its session; None if only the application can.
        advertised: What the answer to a handshake has among its capabilities; nothing if clients need not be told.
    """

    options: ClassVar[Mapping[str, Any]] = {}
    modern: ClassVar[bool] = False
    begins: ClassVar[Call | None] = None
    ends: ClassVar[Call | None] = None
    advertised: ClassVar[Mapping[str, Any]] = {}

    def held(self, answer: Answer) -> Held:
        """Return what a client holds after the answer to `begins`."""
        raise NotImplementedError("override held: it returns what a client holds after the answer to begins")

    def carry(self, held: Held, call: Call) -> None:
        """Add to a request what identifies the session."""

    def learn(self, held: Held, answer: Answer) -> Held:  # noqa: ARG002
        """Return what a client holds after the answer to a request in the session."""
        return held

    def make_server(self) -> Server:
        """Return the server behind the middleware."""
        return Server()

    # --- the tests ---

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop; with `params=["asyncio", "trio"]`, a fixture in your class runs the tests on both."""
        return "asyncio"

    @pytest.fixture
    def clock(self) -> Clock:
        """The clock of all workers."""
        return Clock()

    @pytest.fixture
    def server(self) -> Server:
        """The server behind all workers."""
        return self.make_server()

    def worker(self, server: Server, clock: Clock, **options: Any) -> MCPSessionMiddleware:
        """Return a worker of one deployment."""
        fixed: dict[str, Any] = {"keys": KEY, "clock": clock, "principal": user_of}
        return MCPSessionMiddleware(server, **{**fixed, **self.options, **options})

    def client(self, app: Any, user: str | None = "alice") -> Client:
        """Return a client of a worker."""
        return Client(app, modern=self.modern, user=user)

    async def begin(self, client: Client) -> Held:
        """Begin a session, and return what its client holds."""
        return Held() if self.begins is None else self.held(await client.send(deepcopy(self.begins)))

    async def use(self, client: Client, held: Held, tool: str = "whoami") -> Answer:
        """Call a tool in a session."""
        call = Call(params={"name": tool, "arguments": {}})
        self.carry(held, call)
        return await client.send(call)

    async def tally(self, client: Client, held: Held) -> tuple[list[int], Held]:
        """Count in the state and in the data of a session."""
        answer = await self.use(client, held, "tally")
        return answer.result["n"], self.learn(held, answer)

    async def end(self, client: Client, held: Held) -> None:
        """End a session, as its client or else as the application."""
        if self.ends is None:
            assert (await self.use(client, held, "leave")).error_code is None
            return
        call = deepcopy(self.ends)
        self.carry(held, call)
        assert (await client.send(call)).status == 200

    async def is_over(self, client: Client, held: Held, ref: str) -> bool:
        """Return whether a session is no longer used: its id is not found, or the client gets another session."""
        answer = await self.use(client, held)
        return answer.error_code == NOT_FOUND or (held.id is None and answer.result["ref"] not in {None, ref})

    @pytest.mark.anyio
    async def test_client_gets_session_of_its_own(self, server: Server, clock: Clock) -> None:
        """All its requests are in this session, and it is created once."""
        created = list[str]()

        def listen(event: SessionEvent) -> None:
            created.extend([event.ref] if isinstance(event, SessionCreated) else [])

        app = self.worker(server, clock, telemetry=Telemetry(listen=listen))
        alice, bob = self.client(app), self.client(app, "bob")
        one, other = await self.begin(alice), await self.begin(bob)
        refs = [
            (await self.use(client, held)).result["ref"] for client, held in ((alice, one), (alice, one), (bob, other))
        ]
        assert refs[0] == refs[1] != refs[2]
        assert {*created} == {*refs}
        assert len(created) == len({*refs})

    @pytest.mark.anyio
    async def test_session_id_fits_a_header(self, server: Server, clock: Clock) -> None:
        held = await self.begin(self.client(self.worker(server, clock), None))
        if held.id is None:
            pytest.skip(NO_ID)
        assert re.fullmatch(r"[\x21-\x7e]{1,1024}", held.id)

    @pytest.mark.anyio
    async def test_state_and_data_are_kept_on_every_worker(self, server: Server, clock: Clock) -> None:
        store = MemoryStore(clock=clock)
        here, there = (self.client(self.worker(server, clock, store=store)) for _ in range(2))
        bob = self.client(self.worker(server, clock, store=store), "bob")
        held, other = await self.begin(here), await self.begin(bob)
        counted = list[list[int]]()
        for client in (here, there, here):
            count, held = await self.tally(client, held)
            counted.append(count)
        assert counted == [[1, 1], [2, 2], [3, 3]]
        assert (await self.tally(bob, other))[0] == [1, 1]

    @pytest.mark.anyio
    async def test_application_fills_new_session(self, server: Server, clock: Clock) -> None:
        async def fill(session: Session, *_: object) -> None:
            session.state["n"] = 10
            await session.data.set("n", 20)

        client = self.client(self.worker(server, clock, on_create=fill))
        assert (await self.tally(client, await self.begin(client)))[0] == [11, 21]

    @pytest.mark.anyio
    async def test_only_requests_in_session_pass_if_one_is_required(self, server: Server, clock: Clock) -> None:
        app = self.worker(server, clock, require="always")
        client, stranger = self.client(app), self.client(app, None)
        assert (await self.use(client, await self.begin(client))).error_code is None
        assert (await stranger.request("tools/call", name="whoami", arguments={})).error_code in REQUIRED

    @pytest.mark.anyio
    async def test_forged_id_is_not_found(self, server: Server, clock: Clock) -> None:
        client = self.client(self.worker(server, clock))
        held = await self.begin(client)
        if held.id is None:
            pytest.skip(NO_ID)
        forged = replace(held, id=held.id[:-4] + ("AAAA" if held.id[-4:] != "AAAA" else "BBBB"))
        assert (await self.use(client, forged)).error_code == NOT_FOUND

    @pytest.mark.anyio
    async def test_expired_session_is_not_used(self, server: Server, clock: Clock) -> None:
        client = self.client(self.worker(server, clock))
        held = await self.begin(client)
        ref = (await self.use(client, held)).result["ref"]
        clock.now += 30 * DAY
        assert await self.is_over(client, held, ref)

    @pytest.mark.anyio
    async def test_foreign_session_is_not_found(self, server: Server, clock: Clock) -> None:
        """That of another user, and that of another deployment with the same keys."""
        app = self.worker(server, clock)
        held = await self.begin(self.client(app))
        if held.id is None:
            pytest.skip(NO_ID)
        for client in (self.client(app, "bob"), self.client(app, None)):
            assert (await self.use(client, held)).error_code == NOT_FOUND
        elsewhere = await self.use(self.client(self.worker(server, clock, audience="another")), held)
        assert elsewhere.error_code == NOT_FOUND or elsewhere.result["ref"] is None

    @pytest.mark.anyio
    async def test_session_id_is_worth_nothing_in_other_dialects(self, server: Server, clock: Clock) -> None:
        """Its id in `params._meta`, and there the id of another dialect, is not found; nor is that one here."""
        client = self.client(self.worker(server, clock))
        held = await self.begin(client)
        if held.id is None:
            pytest.skip(NO_ID)
        drafts = Client(client.app, modern=False, user="alice")
        drafted: str = (await drafts.request("sessions/create")).result["session"]["sessionId"]
        in_meta, in_header = Call(params={"name": "whoami", "arguments": {}}), Call(params={"name": "whoami"})
        in_meta.meta[SESSION_KEY] = {"sessionId": held.id}
        in_header.headers.append((b"mcp-session-id", held.id.encode()))
        is_draft = self.begins is not None and self.begins == Call("sessions/create")
        foreign = (await drafts.send(in_header)) if is_draft else (await drafts.send(in_meta))
        assert foreign.error_code in {NOT_FOUND, MISMATCH}
        if not is_draft:
            assert (await self.use(client, replace(held, id=drafted))).error_code in {NOT_FOUND, MISMATCH}

    @pytest.mark.anyio
    async def test_session_ends_on_every_worker(self, server: Server, clock: Clock) -> None:
        """The application is told once."""
        store, ended = MemoryStore(clock=clock), list[str]()

        def on_end(session: EndedSession, _reason: str) -> None:
            ended.append(session.ref)

        here = self.client(self.worker(server, clock, store=store, on_end=on_end))
        there = self.client(self.worker(server, clock, store=store))
        held = await self.begin(here)
        ref = (await self.use(there, held)).result["ref"]
        await self.end(here, held)
        assert [await self.is_over(client, held, ref) for client in (there, here)] == [True, True]
        assert ended == [ref]

    @pytest.mark.anyio
    async def test_application_never_sees_session_id(self, server: Server, clock: Clock) -> None:
        client = self.client(self.worker(server, clock))
        held = await self.begin(client)
        if held.id is None:
            pytest.skip(NO_ID)
        _, held = await self.tally(client, held)
        await self.use(client, held)
        seen = [part for scope, body in server.seen for part in (_visible(scope), body)]
        assert not [part for part in seen if held.id is not None and held.id.encode() in part]

    @pytest.mark.anyio
    async def test_server_advertises_dialect(self, server: Server, clock: Clock) -> None:
        if not self.advertised:
            pytest.skip("the clients of this dialect need not be told")
        client = self.client(self.worker(server, clock))
        method = "server/discover" if self.modern else "initialize"
        answer = await client.request(method, protocolVersion="2025-11-25", capabilities={}, clientInfo={})
        capabilities = answer.result["capabilities"]
        assert {name: capabilities.get(name) for name in self.advertised} == self.advertised


def _visible(scope: Any) -> bytes:
    """Return what an application sees of a request beside its body."""
    headers = b" ".join(name + b"=" + value for name, value in scope["headers"])
    return b" ".join([headers, scope["query_string"], scope["path"].encode()])
