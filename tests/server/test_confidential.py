"""What the wrapped application gets: no credential of ours, in no place of a message and in no variable of a traceback.

Error reporters such as Sentry send the local variables of every frame to another service.
"""

import json
import re
from typing import Any

import pytest
from apps import Seen, Server, read, reply, sessions
from clients import SESSION_KEY, Answer, Client, Header, Incoming, call, http
from sep1364 import Speaker
from starlette.types import Receive, Scope, Send
from stateful import Stateful

from mcp_sessions import Session
from mcp_sessions.dialects import SEP1364Create, SEP1364Initialize

ARGUMENTS = r'{ "text": "\u00e4\/\ud83d\ude00", "n": 1e400, "big": 18446744073709551616, "io": "sessionId" }'


async def fail(session: Session | None, arguments: dict[str, Any]) -> Any:
    """A tool with a bug, in whose frames a reporter reads."""
    raise LookupError(session, arguments)


def secrets_of(session: dict[str, str]) -> list[str]:
    """The parts of a session's credentials that nobody may see, each long enough to be no accident."""
    return [part for value in session.values() for part in value.split(".") if len(part) > 20]


def variables(error: BaseException) -> str:
    """Every local variable of the frames below the test's own and of chained errors, as error reporters print them."""
    ahead, found = [error], list[str]()
    for one in ahead:
        ahead += [chained for chained in (one.__cause__, one.__context__) if chained is not None]
        trace = one.__traceback__
        while trace is not None:
            if not re.search("/tests/(server|support/clients)", trace.tb_frame.f_code.co_filename):
                found += [repr(value) for value in trace.tb_frame.f_locals.values()]
            trace = trace.tb_next
    return "\n".join(found)


async def make_state(session: Session, params: object, scope: object) -> None:
    session.state["n"] = 1


def body(session: Any, *, spelling: str = "plain", method: str = "tools/call", **more: Any) -> bytes:
    """A message that names a session, with arguments that no round trip would keep."""
    named = json.dumps(session)
    key, gap = {
        "plain": (f'"{SESSION_KEY}"', ""),
        "blanks": (f'\n"{SESSION_KEY}" ', " "),
        "escaped": ('"io.modelcontextprotocol\\u002fsession"', ""),
    }[spelling]
    head = "".join(f'"{name}":{json.dumps(value)},' for name, value in {"jsonrpc": "2.0", **more}.items())
    place = {"plain": '{%s,"progressToken":1}', "blanks": '{ "progressToken" : 1 ,%s}', "escaped": "{%s}"}[spelling]
    meta = place % f"{key}:{gap}{named}"
    return f'{{{head}"method":"{method}","params":{{"name":"whoami","arguments":{ARGUMENTS},"_meta":{meta}}}}}'.encode()


SHAPES: dict[str, dict[str, Any]] = {
    "a request": {"id": 1},
    "a list": {"id": "a", "method": "tools/list"},
    "a notification": {"method": "notifications/progress"},
    "a handshake": {"id": 1, "method": "initialize"},
    "a ping": {"id": 1, "method": "ping"},
    "a completion": {"id": 1, "method": "completion/complete"},
}


@pytest.mark.parametrize("spelling", ["plain", "blanks", "escaped"])
@pytest.mark.parametrize("shape", ["a request", "a list", "a handshake", "a ping", "a completion"])
async def test_no_message_holds_its_session(shape: str, spelling: str) -> None:
    await holds_no_session(shape, spelling)


@pytest.mark.parametrize("spelling", ["plain", "blanks", "escaped"])
async def test_no_notification_holds_its_session(spelling: str) -> None:
    await holds_no_session("a notification", spelling)


async def holds_no_session(shape: str, spelling: str) -> None:
    """Everything else keeps its bytes, and the length that is announced is true."""
    server = Server()
    client = Client(sessions(server, on_create=make_state), modern=False)
    session = await client.create()
    assert {"sessionId", "state"} == set(session)
    assert (await client.post(body(session, spelling=spelling, **SHAPES[shape]))).status in {200, 202}
    text = server.last.body
    assert not [secret for secret in secrets_of(session) if secret.encode() in text]
    assert ARGUMENTS.encode() in text
    assert SESSION_KEY not in server.last.json["params"]["_meta"]
    assert server.last.headers[b"content-length"] == b"%d" % len(text)


async def test_same_text_in_arguments_is_kept() -> None:
    """An argument may look like the session that is taken out."""
    server = Server()
    client = Client(sessions(server))
    session = await client.create()
    message = client.message("tools/call", {"name": "whoami", "arguments": {SESSION_KEY: session}}, session=session)
    for text in (json.dumps(message), json.dumps(message, separators=(",", ":"))):
        await client.post(text.encode())
        assert SESSION_KEY not in server.last.json["params"]["_meta"]
        assert server.last.json["params"]["arguments"] == {SESSION_KEY: session}


async def test_message_without_session_keeps_its_bytes() -> None:
    server = Server()
    client = Client(sessions(server), modern=False)
    text = f'{{ "jsonrpc":"2.0", "id":1, "method":"ping", "params":{{"x": "{SESSION_KEY}", "_meta": {{}} }}}}'.encode()
    await client.post(text)
    assert server.last.body == text


@pytest.mark.parametrize("lists", ["stable", "session", "untouched"])
async def test_no_list_option_forwards_session(lists: Any) -> None:
    server = Server()
    client = Client(sessions(server, lists=lists))
    session = await client.create()
    await client.send("tools/list", session=session)
    assert SESSION_KEY not in server.last.json["params"]["_meta"]
    await client.send("tools/call", {"name": "whoami", "requestState": "s", "inputResponses": {}}, session=session)
    assert SESSION_KEY not in server.last.json["params"]["_meta"]
    assert server.last.json["params"]["requestState"] == "s"


async def test_no_response_of_client_holds_session() -> None:
    """Clients may name their session in what they answer, alone or to a request that was repeated for input."""
    server = Server()
    client = Client(sessions(server), modern=False)
    session = await client.create()
    named = {"_meta": {SESSION_KEY: session, "x": 1}}
    await client.post({"jsonrpc": "2.0", "id": 7, "result": {"action": "accept", **named}})
    assert server.last.json["result"] == {"action": "accept", "_meta": {"x": 1}}
    assert server.last.headers[b"content-length"] == b"%d" % len(server.last.body)
    params = {"name": "whoami", "inputResponses": {"a": {"action": "accept", **named}, "b": 1}}
    await client.send("tools/call", params, session=session)
    assert server.last.json["params"]["inputResponses"] == {"a": {"action": "accept", "_meta": {"x": 1}}, "b": 1}


async def test_batch_whose_response_names_session_is_refused() -> None:
    """Batches are forwarded as they come."""
    server = Server()
    client = Client(sessions(server), modern=False)
    reply = {"jsonrpc": "2.0", "id": 7, "result": {"_meta": {SESSION_KEY: await client.create()}}}
    seen = len(server.seen)
    assert (await client.post([reply, reply])).status == 400
    assert len(server.seen) == seen


class Failing(Server):
    """A server whose every tool has a bug."""

    def __init__(self) -> None:
        super().__init__(whoami=fail)


async def traced(client: Client, *headers: Header, session: Any = None, **fields: Any) -> str:
    """Call the tool that fails, and return what a reporter would send."""
    message = {**client.message("tools/call", {"name": "whoami", "arguments": {}}, session=session), **fields}
    raw, scope = json.dumps(message).encode(), http(headers=[*client.headers("tools/call"), *headers])
    with pytest.raises(LookupError) as failure:
        await client.app(scope, Incoming({"type": "http.request", "body": raw}), Answer())
    return variables(failure.value)


@pytest.mark.parametrize("modern", [True, False], ids=["modern", "legacy"])
async def test_no_traceback_holds_session_of_draft(modern: bool) -> None:
    client = Client(sessions(Failing(), on_create=make_state), modern=modern)
    session = await client.create()
    mirror = (b"mcp-session-id", session["sessionId"].encode())
    for headers in ([], [mirror]):
        shown = await traced(client, *headers, session=session)
        assert not [secret for secret in secrets_of(session) if secret in shown]


async def test_no_traceback_holds_session_of_header() -> None:
    client = Client(sessions(Failing()), modern=False)
    header = await client.initialize()
    shown = await traced(client, header)
    assert not [secret for secret in secrets_of({"": header[1].decode()}) if secret in shown]


async def test_no_traceback_holds_session_of_cookie() -> None:
    client = Client(sessions(Failing()))
    cookie = (await client.send("server/discover")).cookie
    shown = await traced(client, cookie)
    assert not [secret for secret in secrets_of({"": cookie[1].decode().partition("=")[2]}) if secret in shown]


@pytest.mark.parametrize("dialect", [SEP1364Create(), SEP1364Initialize()], ids=["create", "initialize"])
async def test_no_traceback_holds_session_of_sep1364(dialect: Any) -> None:
    speaker = Speaker(sessions(Failing(), dialects=[dialect]))
    begun = await speaker.initialize()
    session_id = begun.json.get("sessionId") or await speaker.create()
    mirror = (b"mcp-session-id", session_id.encode())
    shown = await traced(speaker.client, mirror, sessionId=session_id)
    assert not [secret for secret in secrets_of({"": session_id}) if secret in shown]


async def test_no_traceback_holds_id_of_bridge() -> None:
    client = Client(sessions(server := Stateful(), bridge=True), modern=False)
    header = await client.initialize()

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise LookupError(await read(receive))

    client.app.app = broken  # type: ignore[attr-defined]
    shown = await traced(client, header)
    assert server.seen
    assert not [secret for secret in secrets_of({"": header[1].decode()}) if secret in shown]


class Breaking:
    """A stateful server, or one that names events, until it breaks."""

    def __init__(self, *, bridge: bool) -> None:
        self.server: Any = Stateful(sse=True) if bridge else self.stream
        self.is_broken = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.is_broken:
            raise LookupError(await read(receive))
        await self.server(scope, receive, send)

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = json.loads(await read(receive) or b"{}")
        text = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": {}}).encode()
        await reply(send, b"id: 7\ndata: %b\n\n" % text, media_type=b"text/event-stream")


@pytest.mark.parametrize(
    ("method", "bridge", "resumes"),
    [("DELETE", False, False), ("DELETE", True, False), ("GET", True, False), ("GET", False, True)],
)
async def test_no_traceback_of_request_without_body_holds_ids(method: str, bridge: bool, resumes: bool) -> None:
    """Neither the session's, nor that of the event from which a stream resumes."""
    server = Breaking(bridge=bridge)
    client = Client(sessions(server, bridge=bridge), modern=False)
    headers, ids = [header := await client.initialize()], {"": header[1].decode()}
    if resumes:
        event = (await client.send("tools/call", {"name": "x"}, header)).body.partition(b"id: ")[2].splitlines()[0]
        headers.append((b"last-event-id", event))
        ids["event"] = event.decode()
    server.is_broken = True
    with pytest.raises(LookupError) as failure:
        await call(client.app, http(method, headers=headers))
    assert not [secret for secret in secrets_of(ids) if secret in variables(failure.value)]


@pytest.mark.parametrize("refusal", ["ended", "forged", "twice"])
@pytest.mark.parametrize("bridge", [False, True])
async def test_no_traceback_of_refused_delete_holds_session(refusal: str, bridge: bool) -> None:
    """The server is asked whether it admits the caller, and breaks."""
    server = Breaking(bridge=bridge)
    client = Client(sessions(server, bridge=bridge), modern=False)
    header = await client.initialize()
    if refusal == "ended":
        assert (await call(client.app, http("DELETE", headers=[header]))).status == 200
    if refusal == "forged":
        header = (header[0], header[1][:-8] + b"AAAAAAAA")
    server.is_broken = True
    with pytest.raises(LookupError) as failure:
        await call(client.app, http("DELETE", headers=[header] * (2 if refusal == "twice" else 1)))
    assert not [secret for secret in secrets_of({"": header[1].decode()}) if secret in variables(failure.value)]


@pytest.mark.parametrize("form", ["a batch", "no message"])
async def test_no_traceback_of_what_is_no_message_holds_its_bytes(form: str) -> None:
    """What was not understood is forwarded as it came, and may hold anything."""
    server = Breaking(bridge=False)
    app = sessions(server, path=None)
    server.is_broken = True
    secret = "a-secret-of-more-than-twenty-letters"
    text = {
        "a batch": [{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": secret}}],
        "no message": {"x": secret},
    }
    headers = [(b"content-type", b"application/json")]
    with pytest.raises(LookupError) as failure:
        await call(app, http(headers=headers), json.dumps(text[form]).encode())
    assert secret not in variables(failure.value)


@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/mcp/live", "/live"])
@pytest.mark.parametrize("bridge", [False, True])
async def test_websocket_upgrade_holds_no_credential(path: str, bridge: bool) -> None:
    """Browsers send our cookie with them, and nobody here reads it."""
    client = Client(sessions(Server()))
    cookie = (await client.send("server/discover")).cookie[1]
    client.modern = False
    header = await client.initialize()
    seen: list[Seen] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(Seen(scope, b""))

    headers = [(b"cookie", b"a=1; " + cookie), header, header, (b"x", b"y")]
    scope = {"type": "websocket", "path": path, "scheme": "ws", "headers": headers}
    await call(sessions(app, bridge=bridge), scope)
    assert seen[0].headers == {b"cookie": b"a=1", b"x": b"y"}


@pytest.mark.parametrize("options", [{}, {"transport": "off"}])
async def test_websocket_upgrade_keeps_everything_else(options: Any) -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    headers = [(b"cookie", b"a=1"), (b"mcp-session-id", b"the-servers-own")]
    await call(sessions(app, **options), {"type": "websocket", "path": "/mcp", "headers": headers})
    assert seen[0]["headers"] == headers


@pytest.mark.parametrize("sent", [(b"content-length", b"999"), (b"transfer-encoding", b"chunked"), (b"x", b"y")])
async def test_announced_length_is_that_of_what_is_left(sent: Header) -> None:
    server = Server()
    client = Client(sessions(server))
    session = await client.create()
    await client.post(client.message("tools/call", {"name": "whoami"}, session=session), sent)
    assert server.last.headers[b"content-length"] == b"%d" % len(server.last.body)
    assert b"transfer-encoding" not in server.last.headers
