"""A test for every published flaw of a neighbour (PyJWT, MCP SDKs and servers, FastMCP, Starlette) that could be ours.

Where the flaw cannot concern us, the test asserts the fact that makes it so; where only an identifier was found, it
takes the kind of flaw that this neighbour could bring us. What other tests ask anyway is left to them:

- CVE-2026-52869, CVE-2026-52870 and GHSA-jpw9-pfvf-9f58, a session of another user in the Python SDK before 1.27.2, and
  CVE-2026-27124, a grant of FastMCP's OAuth proxy that another user completes: `integration/test_bearer_auth.py`.
- CVE-2026-25536, two clients with one request id in the TypeScript SDK before 1.26.0:
  `integration/test_current_session.py`.
- CVE-2026-27896 and GHSA-q382-vc8q-7jhj, member names in another case or with NUL in the Go SDK before 1.4.1:
  `integration/test_parser_agreement.py`.
- `BaseHTTPMiddleware` of Starlette, which held streams back and hid that a client had left:
  `integration/test_clients.py`.
"""

import base64
import hmac
import json
import re
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial, reduce
from operator import and_, or_
from pathlib import Path
from typing import Any, Final

import jwt
import pytest
from apps import Server, reply, sessions
from clients import SECRET, Client, Incoming, call, chunks, http
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from signers import P256, private_pem, public_pem
from starlette.types import Receive, Scope, Send

import mcp_sessions
from mcp_sessions._errors import ConfigurationError, SessionNotFound
from mcp_sessions._session.claims import TYP, looks_like_session_id
from mcp_sessions._tokens.jwt import Tokens
from mcp_sessions._tokens.keys import _NEVER_SECRET, KeyRing, base64url, from_base64url

NOW: Final = 1_800_000_000
NOT_FOUND: Final = -32043

PUBLIC_PEM: Final = public_pem(P256).encode()
PUBLIC_DER: Final = P256.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
PUBLIC_SSH: Final = P256.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
PUBLIC_JWK: Final = json.dumps(jwt.algorithms.ECAlgorithm.to_jwk(P256.public_key(), as_dict=True)).encode()

SYMMETRIC: Final = KeyRing([SECRET])
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


def header(ring: KeyRing = SYMMETRIC, **changes: Any) -> dict[str, Any]:
    return {"alg": ring.signing.algorithm, "kid": ring.signing.kid, "typ": TYP, **changes}


def signed(header: Any, payload: Any = CLAIMS, *, by: Callable[[bytes], bytes] = SYMMETRIC.signing.sign) -> str:
    """Sign any header and payload, by default with our key."""
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, payload)]
    text = ".".join(map(base64url, parts))
    return f"{text}.{base64url(by(text.encode()))}"


def refused(token: str, ring: KeyRing = SYMMETRIC) -> str:
    """Return the reason for which we refuse a token."""
    with pytest.raises(SessionNotFound) as refusal:
        TOKENS.verify(ring, token, now=NOW, principal=None)
    return refusal.value.reason


# --- PyJWT: an HMAC secret that is a public key ----------------------------------------------------

PEM_LINES: Final = PUBLIC_PEM.strip().split(b"\n")
PUBLIC_TEXTS: Final = {
    "CVE-2022-29217: before 2.4.0, forms that it did not know, such as OpenSSH's": [PUBLIC_SSH, PUBLIC_PEM],
    "CVE-2026-48526: before 2.13.0, a public JWK where HMAC was allowed beside other algorithms": [
        PUBLIC_JWK,
        b" " + PUBLIC_JWK + b"\n",
    ],
    "CVE-2026-102268: before 2.14.0, a PEM with other white space, as a copy or an environment variable makes it": [
        *(between.join(PEM_LINES) for between in (b"\r", b" ", b"\\n", b"")),
    ],
    "CVE-2026-102271: before 2.14.0, DER; only the fix was found": [PUBLIC_DER, base64.b64encode(PUBLIC_DER)],
    "CVE-2026-102273: 2.13.0, a JWK that is not at the top of the JSON, as in a key set or an array": [
        b"[%b]" % PUBLIC_JWK,
        b'{"keys":[%b]}' % PUBLIC_JWK,
        PUBLIC_JWK.decode().encode("utf-16"),
    ],
    "CVE-2026-102266: before 2.14.0, an empty secret in a JWK": [b"", b" " * 40, b"\0" * 32, b'{"kty":"oct","k":""}'],
}
"""What PyJWT took for HMAC secrets, though anyone knows it and could sign, by advisory."""


@pytest.mark.parametrize("forms", PUBLIC_TEXTS.values(), ids=PUBLIC_TEXTS)
def test_what_is_public_is_not_a_secret(forms: list[bytes]) -> None:
    """We refuse HMACs under each text, and the text as a key."""
    for form in forms:
        by = partial(hmac.digest, form, digest="sha256")
        assert refused(signed(header(EC_RING, alg="HS256"), by=by), EC_RING) == "token_algorithm"
        assert refused(signed(header(), by=by)) == "token_signature"
        with pytest.raises(ConfigurationError):
            KeyRing([form])


@pytest.mark.parametrize("begins", _NEVER_SECRET)
def test_what_begins_as_a_public_key_is_not_a_secret(begins: bytes) -> None:
    """A part of one is public, too, where PyJWT sees no key in it."""
    with pytest.raises(ConfigurationError, match="or a part of one"):
        KeyRing([begins + b"aLkq83mZx0Wp-4TbYh_5NvCr6Gd2SfEj"])


# --- PyJWT: tokens --------------------------------------------------------------------------------

DETACHED: Final = header(b64=False, crit=["b64"])
DEEP: Final = b"[" * 1_300
TOKENS_LET_IN: Final[dict[str, list[tuple[str, Any, Any]]]] = {
    "CVE-2026-32597 and GHSA-75c5-xw7c-p5pm (of which no text was found): before 2.12.0, `crit` was ignored": [
        ("token_header", header(crit=crit, b64=True), CLAIMS) for crit in (["b64"], [], None)
    ],
    "CVE-2026-48523: 2.9.0 to 2.12.1, `alg` was compared with the allowed ones, and the key's was used": [
        ("token_algorithm", header(alg="EdDSA"), CLAIMS)
    ],
    "CVE-2026-102265 and CVE-2026-101918: before 2.15.0, nesting raised RecursionError, unverified": [
        ("token_header", DEEP, CLAIMS),
        ("token_claim", header(), DEEP),
    ],
    "GHSA-w7vc-732c-9m39: before 2.13.0, with `b64: false` a payload of any length was decoded, unverified": [
        ("token_size", DETACHED, b"x" * 1_000_000),
        ("token_header", DETACHED, CLAIMS),
    ],
}
"""The reason for which we refuse what PyJWT let in or fell over, with its header and payload, by advisory."""


@pytest.mark.parametrize("rows", TOKENS_LET_IN.values(), ids=TOKENS_LET_IN)
def test_a_token_that_pyjwt_let_in_is_refused(rows: list[tuple[str, Any, Any]]) -> None:
    for reason, *parts in rows:
        assert refused(signed(*parts)) == reason


async def test_cve_2026_102269_a_second_spelling_of_a_revoked_token() -> None:
    """PyJWT before 2.14.0 skipped characters in a signature that are not base64url, so a token that was revoked by its
    text lived on in another spelling; we read one spelling, and revoke by `jti`.
    """
    client = Client(sessions(Server(), keys=private_pem(P256)))
    session = await client.create()
    for other in ("!!!!", "="):
        assert (await client.tool(session={"sessionId": session["sessionId"] + other})).error["code"] == NOT_FOUND
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


def test_only_parts_of_neighbours_without_flaws_are_used() -> None:
    """CVE-2026-103001 of PyJWT, of which only the number was found: of its parsing, key sets and claims we use nothing.
    CVE-2026-27124 of FastMCP's OAuth proxy, which did not ask whose browser comes back: nor of its authentication.
    """
    assert imported_from("jwt") == {"jwt.algorithms", "jwt.exceptions"}
    assert not [module for module in imported_from("fastmcp") if "auth" in module]


def imported_from(package: str) -> set[str]:
    """Return the modules of another package from which ours imports."""
    texts = [path.read_text("utf-8") for path in Path(mcp_sessions.__file__).parent.rglob("*.py")]
    return {
        module
        for text in texts
        for module in re.findall(rf"^ *(?:from|import) ({package}\b[\w.]*)", text, re.MULTILINE)
    }


async def test_cve_2026_19516_the_form_of_an_id_is_not_an_identity() -> None:
    """No text was found of this flaw; of its kind is an id that is accepted for its form. We use the form only to
    keep our ids from the wrapped server, and verify every id.
    """
    server = Server()
    client = Client(sessions(server))
    strangers = KeyRing.random()
    token = signed(header(strangers), by=strangers.signing.sign)
    assert looks_like_session_id(token)
    assert (await client.tool(session={"sessionId": token})).error["code"] == NOT_FOUND
    mirrored = await client.tool("whoami", (b"mcp-session-id", token.encode()))
    assert (mirrored.status, mirrored.error["code"]) == (404, NOT_FOUND)  # as a transport session that is over
    assert "tools/call" not in server.methods
    assert all(token.encode() not in seen.body + repr(seen.scope["headers"]).encode() for seen in server.seen)


async def test_cve_2025_6515_ids_that_can_be_guessed() -> None:
    """oatpp-mcp used memory addresses as session ids, which recur and can be guessed; ours hold 128 random bits."""
    client = Client(sessions(Server()))
    ids = [(await client.create())["sessionId"] for _ in range(200)]
    names = [json.loads(from_base64url(token.split(".")[1]))["jti"] for token in ids]
    assert len(set(names)) == 200
    randoms = [int.from_bytes(from_base64url(name), "big") for name in names]
    # Every bit is sometimes set and sometimes not.
    assert (reduce(and_, randoms), reduce(or_, randoms)) == (0, (1 << 128) - 1)


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


async def test_ghsa_w4fh_qvv9_3v23_a_strange_header() -> None:
    """No text was found of this flaw in the Python SDK; of its kind is a header that is converted without a check."""
    client = Client(sessions(Server()))
    lengths = [(b"content-length", length) for length in (b"-1", b"x", b"1e9", b"\xb2", b"9" * 5000, b"0x10", b"")]
    for name, value in (*lengths, (b"content-encoding", b""), (b"mcp-protocol-version", b"\xff")):
        headers = [pair for pair in client.headers("ping") if pair[0] != name]
        text = json.dumps(client.message("ping")).encode()
        answer = await call(client.app, http(headers=[*headers, (name, value)]), text)
        assert answer.status in {200, 400, 413, 415}
    await serves(client)


# --- Starlette -------------------------------------------------------------------------------------


async def test_cve_2026_48710_a_host_header_that_reaches_into_the_path() -> None:
    """Starlette before 1.0.1 built `request.url` from an unchecked Host header, so a check of `request.url.path` saw
    another path than the router; we use the scope's path, as the router does.
    """
    client = Client(sessions(Server(), require={"tools/call"}), modern=False)
    for host in (b"a/elsewhere?", b"a/elsewhere#", b"a/x/..", b"", b"a\\mcp", b"[::1"):
        assert (await client.tool("whoami", (b"host", host))).error["code"] == -31044


seen_inside: ContextVar[str] = ContextVar("seen_inside", default="nothing")


async def test_context_changes_of_the_application_are_kept() -> None:
    """`BaseHTTPMiddleware` runs the application in another task and loses its context; we run it in the same."""

    async def sets_a_variable(scope: Scope, receive: Receive, send: Send) -> None:
        seen_inside.set("something")
        await reply(send, b"{}")

    await Client(sessions(sets_a_variable)).send("ping")
    assert seen_inside.get() == "something"
