"""What holds in every dialect: the contract, run by each of them, and then what holds between each two."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any, ClassVar

import pytest
from clients import INITIALIZE
from failing import Failing

from mcp_sessions import CreateRefused, Session, TransportSessions
from mcp_sessions.dialects import SEP1364Create, SEP1364Initialize
from mcp_sessions.testing import Answer, Call, DialectContract, Held
from mcp_sessions.testing._contract import Clock
from mcp_sessions.testing._dialect_peers import Client, Server

SESSION_KEY = "io.modelcontextprotocol/session"
NOT_FOUND = -32043
HANDSHAKE: dict[str, Any] = {**INITIALIZE}


class Contract(DialectContract):
    """The contract, with a store that fails and an application that refuses."""

    refuses_beginning: ClassVar[bool] = True  # a client that asks for a session learns why it gets none

    @pytest.mark.anyio
    async def test_unavailable_store_is_no_missing_session(self, server: Server, clock: Clock) -> None:
        """Clients take "not found" as final."""
        client = self.client(self.worker(server, clock, store=Failing("look_up", "read")))
        answer = await self.use(client, await self.begin(client))
        assert (answer.status, answer.error_code) == (503, -32603)

    @pytest.mark.anyio
    async def test_application_may_refuse_new_session(self, server: Server, clock: Clock) -> None:
        """A client that did not ask for a session goes on without one."""

        def refuse(session: Session, params: dict[str, Any], scope: Any) -> None:
            raise CreateRefused("not today")

        client = self.client(self.worker(server, clock, on_create=refuse))
        if self.begins is None or self.begins.method == "server/discover":
            answer = await self.use(client, await self.begin(client))
        else:
            answer = await client.send(self.begins)
        assert answer.error_code == (-31045 if self.refuses_beginning else None)
        assert answer.header(b"mcp-session-id") is None


class TestDraft(Contract):
    """`_meta`, `sessions/create`, `sessions/delete`. A client holds its state as well."""

    begins: ClassVar[Call | None] = Call("sessions/create")
    ends: ClassVar[Call | None] = Call("sessions/delete")
    advertised: ClassVar[Mapping[str, Any]] = {"experimental": {"sessions": {"required": "never", "fork": True}}}

    def held(self, answer: Answer) -> Held:
        session = answer.result["session"]
        return Held(session["sessionId"], {"state": session["state"]} if "state" in session else {})

    def carry(self, held: Held, call: Call) -> None:
        call.meta[SESSION_KEY] = {"sessionId": held.id, **held.more}

    def learn(self, held: Held, answer: Answer) -> Held:
        return replace(held, more={"state": answer.result["_meta"][SESSION_KEY]["state"]})


class TestHeader(Contract):
    """`Mcp-Session-Id`, `initialize`, HTTP DELETE."""

    refuses_beginning = False
    begins: ClassVar[Call | None] = Call("initialize", HANDSHAKE)
    ends: ClassVar[Call | None] = Call(http_method="DELETE")

    def held(self, answer: Answer) -> Held:
        return Held(answer.header(b"mcp-session-id"))

    def carry(self, held: Held, call: Call) -> None:
        call.headers.append((b"mcp-session-id", (held.id or "").encode()))


class TestBridge(TestHeader):
    """The same in front of a server that keeps transport sessions, whose ids travel inside of ours."""

    refuses_beginning = True
    options: ClassVar[Mapping[str, Any]] = {"transport": TransportSessions(bridge=True)}

    def make_server(self) -> Server:
        return Server("the-id-of-the-server")


class TestCookie(Contract):
    """The cookie that the answer to `server/discover` sets."""

    modern = True
    begins: ClassVar[Call | None] = Call("server/discover")

    def held(self, answer: Answer) -> Held:
        name, _, value = (answer.header(b"set-cookie") or "").partition(";")[0].partition("=")
        return Held(value, {"name": name})

    def carry(self, held: Held, call: Call) -> None:
        call.headers.append((b"cookie", f"{held.more['name']}={held.id}".encode()))


class TestSEP1364Create(Contract):
    """The field, `sessions/create`, `sessions/delete`."""

    options: ClassVar[Mapping[str, Any]] = {"dialects": [SEP1364Create()]}
    begins: ClassVar[Call | None] = Call("sessions/create", {"capabilities": {}})
    ends: ClassVar[Call | None] = Call("sessions/delete")
    advertised: ClassVar[Mapping[str, Any]] = {"sessions": {"required": False}}

    def held(self, answer: Answer) -> Held:
        return Held(answer.json["sessionId"])

    def carry(self, held: Held, call: Call) -> None:
        call.members["sessionId"] = held.id
        call.headers.append((b"mcp-session-id", (held.id or "").encode()))


class TestSEP1364Initialize(TestSEP1364Create):
    """The field, `initialize`, `terminate`."""

    options: ClassVar[Mapping[str, Any]] = {"dialects": [SEP1364Initialize()]}
    begins: ClassVar[Call | None] = Call("initialize", HANDSHAKE)
    ends: ClassVar[Call | None] = Call("terminate")
    advertised: ClassVar[Mapping[str, Any]] = {}


class TestPerUser(Contract):
    """The session of an authenticated caller, whose client sends nothing."""

    options: ClassVar[Mapping[str, Any]] = {"transport": TransportSessions(per_user=True)}


class TestPerConversation(Contract):
    """The session of a conversation, which the host of an authenticated caller names."""

    options: ClassVar[Mapping[str, Any]] = {"transport": TransportSessions(per_conversation=True)}

    def carry(self, held: Held, call: Call) -> None:
        call.meta["threadId"] = "the-conversation"


class TestArgument(Contract):
    """The session whose handle the model passes to tools."""

    options: ClassVar[Mapping[str, Any]] = {
        "transport": TransportSessions(argument="session", header=False, cookie=False)
    }
    begins: ClassVar[Call | None] = Call(params={"name": "begin_session", "arguments": {}})

    def held(self, answer: Answer) -> Held:
        return Held(answer.result["structuredContent"]["session"])

    def carry(self, held: Held, call: Call) -> None:
        call.params["arguments"]["session"] = held.id

    async def use(self, client: Client, held: Held, tool: str = "whoami") -> Answer:
        """A model reads results alone: one that has failed stands for "not found"."""
        answer = await super().use(client, held, tool)
        has_failed = answer.body != b"" and answer.json.get("result", {}).get("isError", False)
        return replace(answer, body=b'{"error": {"code": %d}}' % NOT_FOUND) if has_failed else answer

    @pytest.mark.anyio
    async def test_only_requests_in_session_pass_if_one_is_required(self, server: Server, clock: Clock) -> None:
        """A call without a handle begins a session."""
        app = self.worker(server, clock, require={"tools/call"})
        client, stranger = self.client(app), self.client(app, None)
        assert (await self.use(client, await self.begin(client))).error_code is None
        begun = (await stranger.request("tools/call", name="whoami", arguments={})).result
        assert begun["ref"].startswith("ses_")
        assert "New session `ses_" in begun["content"][-1]["text"]

    @pytest.mark.anyio
    async def test_unavailable_store_is_no_missing_session(self, server: Server, clock: Clock) -> None:
        """The session is created while the store answers."""
        store = Failing()
        client = self.client(self.worker(server, clock, store=store))
        held = await self.begin(client)
        store.failing = {"look_up", "read"}
        answer = await self.use(client, held)
        assert (answer.status, answer.error_code) == (503, -32603)


def test_contract_asks_what_clients_hold() -> None:
    with pytest.raises(NotImplementedError, match="override held"):
        DialectContract().held(Answer(200, (), b""))


# --- between two dialects ---

BOTH: Mapping[str, Any] = {"dialects": [SEP1364Create(), SEP1364Initialize()]}
IN_FIELD = TestSEP1364Create, TestSEP1364Initialize
IN_HEADER = TestHeader, TestSEP1364Initialize  # header and field are two names of one session


@pytest.mark.parametrize(("made", "used"), [*permutations([TestDraft, TestHeader, *IN_FIELD], 2)])
async def test_session_is_used_in_the_dialect_that_created_it(made: type[Contract], used: type[Contract]) -> None:
    """A field may repeat what a header names, since it mirrors the header."""
    own, other = made(), used()
    app = own.worker(own.make_server(), Clock(), **BOTH)
    answer = await other.use(other.client(app), await own.begin(own.client(app)))
    if (used in IN_FIELD and made in {*IN_FIELD, *IN_HEADER}) or (made in IN_HEADER and used in IN_HEADER):
        assert answer.result["ref"].startswith("ses_")
    else:
        assert answer.error_code in {NOT_FOUND, -32020}


async def test_metadata_goes_before_transport_session() -> None:
    """Both live side by side; the client learns if the one in the header has ended."""
    draft, header = TestDraft(), TestHeader()
    client = draft.client(draft.worker(draft.make_server(), Clock()))
    session, transport = await draft.begin(client), await header.begin(client)

    async def use_both() -> Answer:
        call = Call(params={"name": "whoami", "arguments": {}})
        draft.carry(session, call)
        header.carry(transport, call)
        return await client.send(call)

    own, of_header = (await draft.use(client, session)).result, (await header.use(client, transport)).result
    assert (await use_both()).result["ref"] == own["ref"] != of_header["ref"]
    await header.end(client, transport)
    assert (await use_both()).status == 404
