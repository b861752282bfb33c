"""The deployments of conversations, each a name and its options in flat spelling."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from hashlib import sha256
from typing import Any

from apps import grouped
from clients import SECRET, user_of
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from signers import private_pem
from starlette.types import Scope

from mcp_sessions import CreateRefused, KeyRing, SEP1364Create, SEP1364Initialize, Session

OTHER_SECRET = "another-secret-for-tests-0123456789-lmnop"


def options(**flat: Any) -> dict[str, Any]:
    """Return the middleware's options from their flat names.

    Ended sessions are swept once, at the start, since scenarios do not wait; a slow store has time enough.
    """
    return grouped(**{"keys": SECRET, "sweep_interval": 3600, "store_timeout": 60, **flat})


def _pem(seed: str) -> str:
    return private_pem(Ed25519PrivateKey.from_private_bytes(sha256(seed.encode()).digest()))


def _fill(session: Session, params: dict[str, Any], _scope: Scope) -> None:
    session.state["created_with"] = params


async def _fill_data(session: Session, _params: dict[str, Any], _scope: Scope) -> None:
    await session.data.set("calls", 10)


def _refuse(_session: Session, params: dict[str, Any], _scope: Scope) -> None:
    if params.get("basket") != "allowed":
        raise CreateRefused("no basket")


def _raise(*_: object) -> None:
    raise LookupError("a hook's own")


def _needs(asked: Any) -> bool:
    return bool(asked.method == "tools/call" and asked.target != "whoami" and not asked.notification)


def _redacted(_what: str, tool: str, value: Any) -> Any:
    return None if tool == "look" else value


CREATE, INITIALIZE = SEP1364Create(), SEP1364Initialize()
BOTH = [CREATE, INITIALIZE]
TRACKED: Mapping[str, Any] = {"tracked": True, "principal": user_of}
NAMED_TOOLS = {"tools/call": ["remember"], "resources/read": ["file:///a"], "prompts/get": True}

SETS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "own_admission": {"admission": "own"},
    "always": {"require": "always"},
    "methods": {"require": {"tools/call", "tools/list", "notifications/progress"}},
    "targets": {"require": NAMED_TOOLS},
    "callable": {"require": _needs},
    "stable": {"lists": "stable"},
    "session_lists": {"lists": "session"},
    "untouched": {"lists": "untouched"},
    "legacy": {"era": "legacy"},
    "legacy_always": {"era": "legacy", "require": "always"},
    "no_transport": {"transport": "off"},
    "short_transport": {"transport_lifetime": 300},
    "bridge": {"bridge": True},
    "bridge_always": {"bridge": True, "require": "always"},
    "bridge_tracked": {"bridge": True, **TRACKED},
    "create": {"dialects": [CREATE]},
    "create_required": {"dialects": [SEP1364Create(required=True)]},
    "initialize": {"dialects": [INITIALIZE]},
    "sessionless": {"dialects": [SEP1364Initialize(sessionless=True)]},
    "both": {"dialects": BOTH, "admission": "own"},
    "both_no_transport": {"dialects": BOTH, "transport": "off"},
    "both_bridge": {"dialects": BOTH, "bridge": True},
    "both_tracked": {"dialects": BOTH, **TRACKED},
    "both_always": {"dialects": BOTH, "require": "always", "lists": "session"},
    "tracked": TRACKED,
    "tracked_idle": {**TRACKED, "idle_timeout": 120},
    "tracked_anonymous": {"tracked": True, "extensions": ["list"]},
    "idle": {"idle_timeout": timedelta(minutes=2)},
    "short": {"lifetime": 300},
    "principal": {"principal": user_of},
    "fills": {"on_create": _fill},
    "fills_data": {"on_create": _fill_data, "on_end": lambda ended, reason: None},
    "refuses": {"on_create": _refuse},
    "raises": {"on_create": _raise},
    "raises_at_end": {"on_end": _raise},
    "limited": {"create_limit": 1},
    "always_own": {"require": "always", "admission": "own"},
    "small": {"max_body_bytes": 700, "max_batch": 2, "max_nesting": 8, "body_timeout": 0.001},
    "small_state": {"max_state_bytes": 60, "max_data_bytes": 40, "max_value_bytes": 20, "max_event_bytes": 120},
    "small_token": {"max_token_bytes": 512, "token_cache": 0},
    "correlate": {"correlate": True},
    "correlate_own": {"correlate": ["header:x-own", "meta:threadId"]},
    "no_extensions": {"extensions": []},
    "fork_only": {"extensions": ["fork"], **TRACKED},
    "every_path": {"path": None},
    "other_path": {"path": "/other"},
    "sqlite": {"store": "sqlite:{folder}/sessions.db"},
    "sqlite_tracked": {"store": "sqlite:{folder}/sessions.db", **TRACKED},
    "no_store": {"store": "sqlite:{folder}/missing/sessions.db"},
    "no_store_allowed": {"store": "sqlite:{folder}/missing/sessions.db", "on_store_error": "allow"},
    "no_store_tracked": {"store": "sqlite:{folder}/missing/sessions.db", **TRACKED},
    "eddsa": {"keys": [_pem("first"), _pem("second")]},
    "rotated": {"keys": [OTHER_SECRET, SECRET]},
    "ring": {"keys": KeyRing([SECRET])},
    "ephemeral": {"keys": None},
    "other_audience": {"audience": "another"},
    "other_issuer": {"issuer": "somewhere"},
    "unheard": {"listen": None},
    "spans": {"spans": "auto"},
    "spans_session": {"trace": "session", "redact": _redacted, "correlate": True},
    "spans_enrich": {"spans": "enrich", **TRACKED},
    "spans_bridge": {"bridge": True},
    "spans_both": {"dialects": BOTH},
    "spans_off": {"spans": "off"},
}
