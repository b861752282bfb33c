"""The command line: make keys, inspect and verify session ids, list and end sessions.

A token is never printed, only what it says. Exit codes: 0 done or accepted, 1 refused, 2 the command cannot be
carried out as given, 3 the store did not answer, so that the outcome is unknown: try again.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from .._errors import ConfigurationError, SessionNotFound, StoreUnavailable
from .._session.claims import AUDIENCE, END_OF_TIME, MAX_CLOCK_SKEW, looks_like_session_id, ref_of, utc
from .._tokens.jwt import Tokens
from .._tokens.keyfile import key_source
from .._tokens.keys import base64url, from_base64url
from . import sessions
from .terminal import OK, UNKNOWN, USAGE, refuse, secret_location, show, text_in

_UNVERIFIED: Final = "NOT VERIFIED: anyone could have written what follows. `verify` checks it with the keys.\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command, of these arguments or the process's own, and return its exit code."""
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as stopped:  # argparse has printed why
        return USAGE if stopped.code else OK
    try:
        code: int = arguments.command(arguments)
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        return USAGE
    except StoreUnavailable as error:
        sys.stderr.write(f"{error} ({error.reason}): the change may or may not have been made; try again\n")
        return UNKNOWN
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mcp-sessions", description="Keys, session ids and sessions of mcp-sessions.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {metadata.version('mcp-sessions')}")
    commands = parser.add_subparsers(required=True, metavar="keygen | inspect | verify | list | end | end-all")
    keygen = commands.add_parser("keygen", help="print a new key; redirect it to a file that only the server reads")
    keygen.add_argument("--algorithm", choices=list(_NEW_KEYS), default="HS256")
    keygen.set_defaults(command=_keygen)
    inspect = commands.add_parser("inspect", help="show what a session id or a state token says, unverified")
    inspect.set_defaults(command=_inspect)
    verify = commands.add_parser("verify", help="check a session id with the keys")
    place: dict[str, Any] = {"type": secret_location, "metavar": "env:NAME|file:PATH"}
    verify.add_argument("--keys", action="append", required=True, help="may be repeated", **place)
    verify.add_argument("--audience", default=AUDIENCE, help=f"the middleware's ({AUDIENCE})")
    verify.add_argument("--issuer", default="mcp-sessions", help="the middleware's (mcp-sessions)")
    verify.set_defaults(command=_verify)
    for command in (inspect, verify):
        command.add_argument("--file", metavar="PATH", help="the file that holds the token (standard input)")
    sessions.add_commands(commands)
    return parser


def _pem(key: Any) -> str:
    pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem.decode("ascii")


_NEW_KEYS: Final[Mapping[str, Callable[[], str]]] = {
    "HS256": lambda: f"{secrets.token_urlsafe(32)}\n",
    "EdDSA": lambda: _pem(Ed25519PrivateKey.generate()),
    "ES256": lambda: _pem(generate_private_key(SECP256R1())),
}


def _keygen(arguments: argparse.Namespace) -> int:
    sys.stdout.write(_NEW_KEYS[arguments.algorithm]())
    return OK


def _inspect(arguments: argparse.Namespace) -> int:
    token = text_in(arguments.file, option="--file ")
    content = _session_id(token) if looks_like_session_id(token) else _state(token)
    if content is None:
        return refuse("neither a session id nor a state token of mcp-sessions")
    sys.stdout.write(_UNVERIFIED)
    show(content)
    return OK


def _session_id(token: str) -> dict[str, object] | None:
    try:
        header, claims = (json.loads(from_base64url(part)) for part in token.split(".")[:2])
    except (ValueError, RecursionError):
        return None
    if not (isinstance(header, dict) and isinstance(claims, dict)):
        return None
    for name in ("iat", "exp"):
        if isinstance(seconds := claims.get(name), int) and 0 <= seconds <= END_OF_TIME:
            claims[name] = f"{seconds} ({utc(seconds).isoformat()})"
    parts = (("header", header), ("claim", claims))
    ref = {"ref": ref_of(jti)} if isinstance(jti := claims.get("jti"), str) and jti.isascii() else {}
    shown = {f"{part} {name}": values[name] for part, values in parts for name in values}
    return {"token": "session id", **ref, **shown}


def _state(token: str) -> dict[str, object] | None:
    version, _, rest = token.partition(".")
    kid, _, sealed = rest.partition(".")
    try:
        size = len(from_base64url(sealed))
    except ValueError:
        return None
    if version != "v1" or len(kid) != len(base64url(bytes(6))):
        return None
    return {"token": "state", "version": version, "kid": kid, "sealed bytes": size}


def _verify(arguments: argparse.Namespace) -> int:
    now = time.time()
    ring = key_source(arguments.keys)(now)
    tokens = Tokens(issuer=arguments.issuer, audience=arguments.audience, cache_entries=0)
    try:
        claims = tokens.authentic(ring, text_in(arguments.file, option="--file "))
    except SessionNotFound as refusal:
        return refuse(refusal.reason)
    if not claims.issued_at <= now + MAX_CLOCK_SKEW:
        return refuse("token_from_the_future")
    if not now < claims.expires_at:
        return refuse("expired")
    show(
        {
            "accepted": "signature, form, issuer, audience, times",
            "not checked": "whose it is, whether it ended",
            "ref": claims.ref,
            "kind": claims.kind,
            "owner": "anonymous" if claims.subject is None else f"a principal (hash {claims.subject})",
            "issued": utc(claims.issued_at).isoformat(),
            "expires": utc(claims.expires_at).isoformat(),
        }
    )
    return OK
