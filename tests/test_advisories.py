"""A test for every published flaw of a neighbour (PyJWT, MCP SDKs and servers, FastMCP, Starlette) that could be ours.

Where the flaw cannot concern us, the test asserts the fact that makes it so. Each docstring describes what was
published; where only an identifier was found it says so, and the test takes the kind of flaw that this neighbour could
bring us.
"""

import base64
import hmac
import json
import re
from contextvars import ContextVar
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Any, Final

import anyio
import jwt
import pytest
from apps import Server, reply, sessions
from clients import SECRET, SESSION_KEY, Client, Incoming, RealClient, by, call, chunks, http, user_of
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from signers import ED25519, P256, private_pem, public_pem
from sources import claims
from starlette.types import Receive, Scope, Send

import mcp_sessions
from mcp_sessions import Session
from mcp_sessions._errors import ConfigurationError, SessionNotFound
from mcp_sessions._refusals import REFUSALS
from mcp_sessions._session.claims import TYP, looks_like_session_id
from mcp_sessions._tokens.jwt import Tokens
from mcp_sessions._tokens.keys import _NEVER_SECRET, KeyRing, base64url, from_base64url

NOW: Final = 1_800_000_000
NOT_FOUND: Final = -32043
REQUIRED: Final = -31044
GATED: Final = {"tools/call": ["guarded"]}

PUBLIC_PEM: Final = public_pem(P256).encode()
PUBLIC_DER: Final = P256.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
PUBLIC_SSH: Final = P256.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
PUBLIC_JWK: Final = json.dumps(jwt.algorithms.ECAlgorithm.to_jwk(P256.public_key(), as_dict=True)).encode()

SYMMETRIC: Final = KeyRing([SECRET])
ED_RING: Final = KeyRing([private_pem(ED25519)])
EC_RING: Final = KeyRing([private_pem(P256)])
TOKENS: Final = Tokens(issuer="mcp-sessions", audience="mcp-sessions", cache_entries=0)
CLAIMS: Final = {
    "iss": "mcp-sessions",
    "aud": "mcp-sessions",
    "jti": "AAAAAAAAAAAAAAAAAAAAAA",
    "iat": NOW,
    "exp": NOW + 3600,
    "knd": "session",
}


def header(ring: KeyRing, **changes: Any) -> dict[str, Any]:
    return {"alg": ring.signing.algorithm, "kid": ring.signing.kid, "typ": TYP, **changes}


def signing_input(header: Any, payload: Any = CLAIMS) -> str:
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, payload)]
    return ".".join(map(base64url, parts))


def signed(ring: KeyRing, header: Any, payload: Any = CLAIMS) -> str:
    """Sign any header and payload with the ring's key."""
    text = signing_input(header, payload)
    return f"{text}.{base64url(ring.signing.sign(text.encode()))}"


def forged_with(secret: bytes, header: Any) -> str:
    """Sign with an HMAC under a public text."""
    text = signing_input(header)
    return f"{text}.{base64url(hmac.digest(secret, text.encode(), 'sha256'))}"


def minted(ring: KeyRing = SYMMETRIC) -> str:
    """Mint a token as the middleware does."""
    return TOKENS.mint(ring, claims(jti=str(CLAIMS["jti"]), issued_at=NOW, expires_at=NOW + 3600))


def refused(ring: KeyRing, token: str) -> str:
    """Return the reason for which we refuse a token."""
    with pytest.raises(SessionNotFound) as refusal:
        TOKENS.verify(ring, token, now=NOW, principal=None)
    return refusal.value.reason


async def guarded(session: Session | None, arguments: dict[str, Any]) -> str:
    """Run a tool that the policy guards."""
    assert session is not None
    return session.ref


async def free(session: Session | None, arguments: dict[str, Any]) -> str:
    return "free"


# --- PyJWT: an HMAC secret that is a public key ----------------------------------------------------

PEM_LINES: Final = PUBLIC_PEM.strip().split(b"\n")
KEY_SET: Final = b'{"keys":[%b]}' % PUBLIC_JWK
PUBLIC_TEXTS: Final = {
    "CVE-2022-29217: before 2.4.0, forms that it did not know, such as OpenSSH's": [PUBLIC_SSH, PUBLIC_PEM],
    "CVE-2026-48526: before 2.13.0, a public JWK where HMAC was allowed beside other algorithms": [
        PUBLIC_JWK,
        b" " + PUBLIC_JWK + b"\n",
    ],
    "CVE-2026-102268: before 2.14.0, a PEM with other white space, as a copy or an environment variable makes it": [
        *(between.join(PEM_LINES) for between in (b"\r", b"\r\n", b" ", b"\n  ", b"\\n", b"")),
        b"\t" + PUBLIC_PEM,
    ],
    "CVE-2026-102271: before 2.14.0, DER; only the fix was found": [PUBLIC_DER, base64.b64encode(PUBLIC_DER)],
    "CVE-2026-102273: 2.13.0, a JWK that is not at the top of the JSON, as in a key set or an array": [
        KEY_SET,
        b"[%b]" % PUBLIC_JWK,
        b'{"a":{"b":%b}}' % PUBLIC_JWK,
        b"\xef\xbb\xbf" + PUBLIC_JWK,
        KEY_SET.decode().encode("utf-16"),
    ],
}
"""What PyJWT took for HMAC secrets, so that anyone with the public key could sign, by advisory."""


@pytest.mark.parametrize("forms", PUBLIC_TEXTS.values(), ids=PUBLIC_TEXTS)
def test_a_public_key_is_not_a_secret(forms: list[bytes]) -> None:
    """We refuse HMACs under each public text, and the text as a key."""
    for form in forms:
        assert refused(EC_RING, forged_with(form, header(EC_RING, alg="HS256"))) == "token_algorithm"
        assert refused(SYMMETRIC, forged_with(form, header(SYMMETRIC))) == "token_signature"
        with pytest.raises(ConfigurationError):
            KeyRing([form])


@pytest.mark.parametrize("begins", _NEVER_SECRET)
def test_what_begins_as_a_public_key_is_not_a_secret(begins: bytes) -> None:
    """A part of one is public, too, where PyJWT sees no key in it."""
    with pytest.raises(ConfigurationError, match="or a part of one"):
        KeyRing([begins + b"aLkq83mZx0Wp-4TbYh_5NvCr6Gd2SfEj"])


def test_cve_2026_102266_an_empty_secret() -> None:
    """PyJWT before 2.14.0 refused an empty HMAC secret, but not one in a JWK."""
    assert refused(SYMMETRIC, forged_with(b"", header(SYMMETRIC))) == "token_signature"
    for nothing in ("", " " * 40, b"\0" * 32, '{"kty":"oct","k":""}', '{"kty":"oct","k":"","use":"sig","x":"01234"}'):
        with pytest.raises(ConfigurationError):
            KeyRing([nothing])


# --- PyJWT: headers --------------------------------------------------------------------------------


@pytest.mark.parametrize("crit", [["only-on-tuesdays"], ["b64"], ["exp"], [], "b64", [1], None])
def test_cve_2026_32597_and_ghsa_75c5_xw7c_p5pm_critical_extensions(crit: object) -> None:
    """PyJWT before 2.12.0 ignored `crit`, which lists extensions that must be understood (RFC 7515, 4.1.11).

    No text was found of the second flaw; the test tries every form of `crit`, valid or not.
    """
    extended = header(SYMMETRIC, crit=crit, b64=True, exp=0, **{"only-on-tuesdays": True})
    assert refused(SYMMETRIC, signed(SYMMETRIC, extended)) == "token_header"


def test_cve_2026_48523_an_algorithm_that_is_compared_but_not_used() -> None:
    """PyJWT 2.9.0 to 2.12.1 compared the header's `alg` with the allowed ones but verified by the key's algorithm."""
    token = signed(ED_RING, header(ED_RING, alg="ES256"))
    text, _, signature = token.rpartition(".")
    assert ED_RING.signing.verify(text.encode(), from_base64url(signature))
    assert refused(ED_RING, token) == "token_algorithm"


@pytest.mark.parametrize(
    ("header", "payload", "why"),
    [(None, CLAIMS, "token_header"), (header(SYMMETRIC), None, "token_claims")],
    ids=["CVE-2026-102265: 2.13, a header", "CVE-2026-101918: before 2.15.0, a payload that is read unverified"],
)
def test_what_is_nested_to_exhaustion_is_refused_as_all_else(header: Any, payload: Any, why: str) -> None:
    """PyJWT raised RecursionError, before it checked the signature; it is not a ValueError, and we have one error."""
    for deep, reason in ((b"[" * 200_000, "token_size"), (b"[" * 1_300, why)):
        assert refused(SYMMETRIC, signed(SYMMETRIC, header or deep, payload or deep)) == reason


def test_ghsa_w7vc_732c_9m39_work_before_the_signature() -> None:
    """PyJWT before 2.13.0 decoded the payload of a token with `b64: false`, however long, though it then used another;
    we measure before we decode, and refuse that header.
    """
    detached = header(SYMMETRIC, b64=False, crit=["b64"])
    assert refused(SYMMETRIC, signed(SYMMETRIC, detached, b"x" * 1_000_000)) == "token_size"
    assert refused(SYMMETRIC, signed(SYMMETRIC, detached)) == "token_header"
    assert refused(SYMMETRIC, f"{base64url(json.dumps(detached).encode())}..AA") == "token_shape"


# --- PyJWT: signatures -----------------------------------------------------------------------------


async def test_cve_2026_102269_a_second_spelling_of_a_revoked_token() -> None:
    """PyJWT before 2.14.0 skipped characters in a signature that are not base64url, so a token that was revoked by its
    text lived on in another spelling; we read one spelling, and revoke by `jti`.
    """
    token = minted()
    others = [token + "!!!!", token + "=", token[:-1] + chr(ord(token[-1]) + 1), token.replace(".", ".\n")]
    assert [refused(SYMMETRIC, other) for other in others] == ["token_shape"] * 4
    client = Client(sessions(Server(), keys=private_pem(P256)))
    session = await client.create()
    again = {"sessionId": second_signature(session["sessionId"])}
    assert (await client.tool(session=again)).result["content"] != "nobody"
    await client.delete(session)
    assert (await client.tool(session=again)).error["code"] == NOT_FOUND


def second_signature(token: str) -> str:
    """Return the other form of an ES256 signature, (r, n - s)."""
    text, _, signature = token.rpartition(".")
    raw = from_base64url(signature)
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    der = encode_dss_signature(int.from_bytes(raw[:32], "big"), order - int.from_bytes(raw[32:], "big"))
    return f"{text}.{base64url(b''.join(part.to_bytes(32, 'big') for part in decode_dss_signature(der)))}"


@pytest.mark.parametrize("ring", [SYMMETRIC, ED_RING, EC_RING], ids=["HS256", "EdDSA", "ES256"])
def test_cve_2026_103001_other_flaws_of_pyjwt(ring: KeyRing) -> None:
    """Only the number of this flaw was found. We use three algorithms and one error of PyJWT, so flaws in its
    parsing, key sets and claims do not reach us, and a signature that is changed anywhere is refused.
    """
    assert imported_from("jwt") == {"jwt.algorithms", "jwt.exceptions"}
    text, _, signature = (token := minted(ring)).rpartition(".")
    raw = from_base64url(signature)
    assert TOKENS.verify(ring, token, now=NOW, principal=None).claims.jti == CLAIMS["jti"]
    changed = [raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :] for place in range(len(raw))]
    for strange in (*changed, raw[:-1], raw + b"\0", b"\0" * len(raw), raw * 2, b"\0"):
        assert refused(ring, f"{text}.{base64url(strange)}") == "token_signature"


def imported_from(package: str) -> set[str]:
    """Return the modules of another package from which ours imports."""
    texts = [path.read_text("utf-8") for path in Path(mcp_sessions.__file__).parent.rglob("*.py")]
    return {
        module
        for text in texts
        for module in re.findall(rf"^ *(?:from|import) ({package}\b[\w.]*)", text, re.MULTILINE)
    }


# --- MCP SDKs: sessions and principals -------------------------------------------------------------


async def test_cve_2026_52869_ghsa_jpw9_pfvf_9f58_and_cve_2026_52870_a_session_of_another_user() -> None:
    """The Python SDK before 1.27.2 found a session by its id alone, so that another user with the id could use it, and
    let any client list, read and cancel the tasks of all. Here sessions are not listed, and only the owner can use or
    delete one.
    """
    client = Client(sessions(Server(), principal=user_of))
    session = await client.create(by("ann"))
    assert (await client.tool("whoami", by("bob"), session=session)).error["code"] == NOT_FOUND
    assert (await client.tool("whoami", session=session)).error["code"] == NOT_FOUND
    for method in ("sessions/list", "sessions/get", "sessions/cancel"):
        assert (await client.send(method, None, by("bob"))).error["code"] == -32601
    deleted = await client.send("sessions/delete", None, by("bob"), session=session)
    assert deleted.error == {"code": NOT_FOUND, "message": "Session not found", "data": session}
    assert (await client.tool("whoami", by("ann"), session=session)).result["content"] != "nobody"


async def test_cve_2026_27124_the_consent_of_another_user() -> None:
    """FastMCP's OAuth proxy did not check that the browser at its callback had consented, so a victim could complete
    an attacker's grant. The equivalent without OAuth is a session that an attacker creates and a victim fills.
    """
    assert not [module for module in imported_from("fastmcp") if "auth" in module]
    client = Client(sessions(Server(), principal=user_of))
    for attacker in ([by("mallory")], []):
        session = await client.create(*attacker)
        led = await client.tool("remember", by("ann"), session=session, card="4111")
        assert led.error["code"] == NOT_FOUND
        assert (await client.tool("remember", *attacker, session=session)).result["content"] == {}


async def test_cve_2026_25536_two_clients_with_one_request_id() -> None:
    """The TypeScript SDK before 1.26.0 kept answers by JSON-RPC id on an instance that clients shared, so equal ids of
    two clients crossed; here nothing of a request outlives it.
    """
    came: list[str] = []
    both = anyio.Event()

    async def hold(session: Session | None, arguments: dict[str, Any]) -> str:
        assert session is not None
        came.append(session.ref)
        if len(came) == 2:
            both.set()
        await both.wait()
        session.state["mine"] = arguments["who"]
        return str(arguments["who"]) + session.ref

    app = sessions(Server(hold=hold))

    async def converse(name: str) -> None:
        client = Client(app)
        session = await client.create()
        ref = (await client.tool(session=session)).result["content"]
        answer = await client.tool("hold", session=session, who=name)
        assert answer.result["content"] == name + ref
        assert (await client.tool("remember", session=answer.session)).result["content"] == {"mine": name}

    async with anyio.create_task_group() as tasks:
        for name in ("ann", "bob"):
            tasks.start_soon(converse, name)


async def test_cve_2026_19516_the_form_of_an_id_is_not_an_identity() -> None:
    """No text was found of this flaw; of its kind is an id that is accepted for its form. We use the form only to
    keep our ids from the wrapped server, and verify every id.
    """
    server = Server()
    client = Client(sessions(server))
    strangers = KeyRing.random()
    token = signed(strangers, header(strangers), CLAIMS)
    assert looks_like_session_id(token)
    assert (await client.tool(session={"sessionId": token})).error["code"] == NOT_FOUND
    mirrored = await client.tool("whoami", (b"mcp-session-id", token.encode()))
    assert (mirrored.status, mirrored.error["code"]) == (404, NOT_FOUND)  # as a transport session that is over
    assert "tools/call" not in server.methods
    assert all(token.encode() not in seen.body + repr(seen.scope["headers"]).encode() for seen in server.seen)


async def test_cve_2025_6515_ids_that_can_be_guessed() -> None:
    """oatpp-mcp used memory addresses as session ids, which recur and can be guessed; ours hold 128 random bits and
    are signed.
    """
    client = Client(sessions(Server()))
    ids = [(await client.create())["sessionId"] for _ in range(200)]
    names = [json.loads(from_base64url(token.split(".")[1]))["jti"] for token in ids]
    assert len(set(names)) == 200
    randoms = [int.from_bytes(from_base64url(name), "big") for name in names]
    # Every bit is sometimes set and sometimes not.
    assert (reduce(and_, randoms), reduce(or_, randoms)) == (0, (1 << 128) - 1)
    guess = signed(KeyRing.random(), header(SYMMETRIC), {**CLAIMS, "jti": names[0]})
    assert refused(SYMMETRIC, guess) == "token_signature"


# --- MCP SDKs: parsers that differ -----------------------------------------------------------------


def call_with(params: bytes, *names: bytes) -> bytes:
    """Return a legacy call from JSON text, with names put in."""
    return b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + params % names + b"}"


@pytest.mark.parametrize(
    "params",
    [
        b'{"name":"%b","NAME":"%b"}',
        b'{"name":"%b"},"Params":{"name":"%b"}',
        b'{"name":"%b"},"param\\u017f":{"name":"%b"}',
    ],
    ids=["NAME", "Params", "params with a long s"],
)
async def test_cve_2026_27896_names_in_another_case(params: bytes) -> None:
    """The Go SDK before 1.3.1 folded the case of member names, the last one counting, so what a gateway had checked
    was not what ran. We refuse such names, so that it does not matter who stands behind us.
    """
    client = Client(sessions(Server(guarded=guarded, free=free), require=GATED), modern=False)
    for names in ((b"free", b"guarded"), (b"guarded", b"free")):
        assert (await client.post(call_with(params, *names))).error["message"] == REFUSALS["member_case"].message


@pytest.mark.parametrize(
    "params",
    [
        b'{"name":"%b","name\\u0000":"%b"}',
        b'{"name":"%b","name\\u0000\\u0000":"%b"}',
        b'{"name":"%b"},"params\\u0000":{"name":"%b"}',
    ],
    ids=["name", "name, twice", "params"],
)
async def test_ghsa_q382_vc8q_7jhj_names_with_nul(params: bytes) -> None:
    """The Go SDK before 1.4.1 took a name that ends in NUL characters for the name without them; we guard and run the
    exact name.
    """
    client = Client(sessions(Server(guarded=guarded, free=free), require=GATED), modern=False)
    assert (await client.post(call_with(params, b"free", b"guarded"))).result == {"content": "free"}
    assert (await client.post(call_with(params, b"guarded", b"free"))).error["code"] == REQUIRED
    session = await client.create()
    assert (await client.tool("guarded", session=session)).result["content"].startswith("ses_")


# --- MCP SDKs: one request that stops the service ---------------------------------------------------


async def serves(client: Client) -> None:
    """Check that sessions still work."""
    session = await client.create()
    assert (await client.tool(session=session)).result["content"] != "nobody"
    assert (await client.delete(session)).result == {"resultType": "complete"}


async def test_ghsa_3qhf_m339_9g5v_a_malformed_request() -> None:
    """The Python SDK before 1.9.4 raised at a malformed request and answered 500 from then on."""
    client = Client(sessions(Server()))
    for malformed in (b"", b"{", b"[]", b"null", b"\xff", b'{"jsonrpc":"2.0","id":1,"method":1}', b"[" * 200_000):
        assert (await client.post(malformed)).status == 400
    strange: list[Any] = [1, "x", None, [], {}, {"sessionId": None}, {"sessionId": "x", "state": 1}]
    for session in strange:
        answer = await client.post(client.message("tools/call", {"_meta": {SESSION_KEY: session}}))
        assert answer.error["code"] == -32602
    await serves(client)


class Gone(Exception):
    """Raised by a server's `send` when the client has left."""


async def gone(*_: object) -> Any:
    raise Gone


async def test_ghsa_j975_95f5_7wqh_a_client_that_leaves_midway() -> None:
    """In the Python SDK before 1.10.0 a client could end the server with an uncaught error after it had a session; here
    an error ends its own request alone.
    """
    app = sessions(Server(fails=gone, sse=True))
    client = Client(app)
    session = await client.create()
    for method, tool in (("sessions/create", ""), ("tools/call", "whoami")):
        text = json.dumps(client.message(method, {"name": tool})).encode()
        with pytest.raises(Gone):
            await app(http(headers=client.headers(method)), Incoming(*chunks(text)), gone)
    with pytest.raises(Gone):
        await client.tool("fails", session=session)
    with pytest.raises(Gone):
        await app(http(), gone, gone)
    await serves(client)


@pytest.mark.parametrize("length", [b"-1", b"x", b"1e9", b"\xb2", b"9" * 5000, b"0x10", b""])
async def test_ghsa_w4fh_qvv9_3v23_a_strange_header(length: bytes) -> None:
    """No text was found of this flaw in the Python SDK; of its kind is a header that is converted without a check."""
    client = Client(sessions(Server()))
    strange = [(b"content-length", length), (b"content-encoding", b""), (b"mcp-protocol-version", b"\xff")]
    for name, value in strange:
        headers = [pair for pair in client.headers("ping") if pair[0] != name]
        text = json.dumps(client.message("ping")).encode()
        answer = await call(client.app, http(headers=[*headers, (name, value)]), text)
        assert answer.status in {200, 400, 413, 415}
    await serves(client)


# --- Starlette -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["a/elsewhere?", "a/elsewhere#", "a/x/..", "", "a\\mcp", "[::1"])
async def test_cve_2026_48710_a_host_header_that_reaches_into_the_path(host: str) -> None:
    """Starlette before 1.0.1 built `request.url` from an unchecked Host header, so a check of `request.url.path` saw
    another path than the router; we use the scope's path, as the router does.
    """
    server = Server(guarded=guarded)
    client = Client(sessions(server, require=GATED), modern=False)
    answer = await client.tool("guarded", (b"host", host.encode()))
    assert answer.error["code"] == REQUIRED
    assert "tools/call" not in server.methods


seen_inside: ContextVar[str] = ContextVar("seen_inside", default="nothing")


async def test_context_changes_of_the_application_are_kept() -> None:
    """`BaseHTTPMiddleware` runs the application in another task and loses its context; we run it in the same."""

    async def sets_a_variable(scope: Scope, receive: Receive, send: Send) -> None:
        seen_inside.set("something")
        await reply(send, b"{}")

    await Client(sessions(sets_a_variable)).send("ping")
    assert seen_inside.get() == "something"


async def test_events_and_disconnects_are_passed_on_at_once() -> None:
    """`BaseHTTPMiddleware` once held streams back and hid that the client had left; here an event arrives before the
    next one is made, and the application sees the disconnect.
    """
    heard: list[str] = []

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        event = b'data: {"jsonrpc":"2.0","method":"x"}\n\n'
        await send({"type": "http.response.body", "body": event, "more_body": True})
        heard.append((await receive())["type"])

    session = await Client(sessions(Server())).create()
    async with RealClient(sessions(stream)).under_way("tools/call", {"name": "x"}, session=session) as exchange:
        await exchange.next_event()
        assert heard == []
    assert heard == ["http.disconnect"]
