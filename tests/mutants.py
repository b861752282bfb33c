"""Defences proved by their absence: each entry takes one away, and the tests that it names must notice.

`make mutants` applies every change to a copy of the repository, one at a time, and fails where the tests still pass.
`python tests/mutants.py NAME ...` runs some. `docs/security.md` names them; `tests/docs/test_repository.py` holds
the two lists equal, and each old text to one place.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = "middleware/mcp_sessions"
TIMEOUT: Final = 900  # seconds after which tests that hang have noticed


class Mutant(NamedTuple):
    """One line of the package, without a defence."""

    file: str  # in the package
    old: str  # occurs once
    new: str
    tests: str  # files in `tests`, or tests in them, separated by blanks


JWT, SEAL, KEYS = "_tokens/jwt.py", "_tokens/seal.py", "_tokens/keys.py"
SECRETS = "_session/confidential.py"
FILES, PLACEHOLDERS = "_files.py", "_tokens/placeholders.py"
JSON, RPC, DECISION = "_protocol/strict_json.py", "_protocol/jsonrpc.py", "_protocol/decision.py"
COOKIES, POLICY, BODY = "_protocol/cookies.py", "_protocol/policy.py", "_server/body.py"
SESSIONS, ANSWERS, TRANSPORT = "_server/sessions.py", "_server/answers.py", "_server/transport.py"
ORIGINS = "_protocol/origins.py"
PRINCIPALS, CALLER_TESTS = "_server/principal.py", "server/test_principals.py"
KEPT_HANDLES = "server/test_kept_handles.py"
VERIFIED = "server/test_verified_callers.py"
TOGETHER = "stores/_together.py"
SEVERAL = "server/test_several_workers.py"
LIFECYCLE, MINTING, EARLY_END = "_server/lifecycle.py", "_server/minting.py", "_server/early_end.py"
RESUMPTION_FILE, RESPONSE = "_server/resumption.py", "_server/response.py"
BASE, MEMORY, REDIS = "stores/_base.py", "stores/_memory.py", "stores/_redis_scripts.py"

TOKENS, STATE, KEY_TESTS = "tokens/test_tokens.py", "tokens/test_state.py", "tokens/test_keys.py"
SQLITE_FILE = "stores/test_sqlite_file.py"
FILE_TESTS, PLACEHOLDER_TESTS = "test_files.py", "tokens/test_placeholders.py"
REQUEST, CONFIDENTIAL = "_server/request.py", "server/test_confidential.py"
COOKIE_TESTS = "server/test_cookies.py"
CHATS = "server/test_conversations.py"
CARRIED, CARRIED_TESTS = "_dialects/argument.py", "server/test_argument.py"
RPC_TESTS = "protocol/test_jsonrpc.py"
COSTS = "server/test_body_costs.py"
DECISIONS, POLICIES, BODY_TESTS = "server/test_decide.py", "protocol/test_policy.py", "server/test_limits.py"
ANSWER_TESTS, LIVE, FORKS = "server/test_answers.py", "server/test_live.py", "server/test_extensions.py"
OWN_ANSWERS = "server/test_own_answers.py"
OBSERVERS = "server/test_observers.py"
ENDED_CALLS, LATE = "server/test_ended_calls.py", "server/test_late_answers.py"
CONTRACT, RESUMPTION = "stores/test_contract.py", "server/test_resumption.py"
SESSION, INNER = "_session/session.py", "integration/test_inner_requests.py"
OPTIONS = "server/test_options.py"
EVENT_IDS, EVENTS, SSE_TESTS = "_tokens/event_ids.py", "server/test_event_ids.py", "protocol/test_sse.py"
MEMORY_TESTS = "stores/test_memory.py stores/test_contract.py"

MUTANTS: Final = {
    # who calls
    "principal-text": Mutant(
        PRINCIPALS,
        "    if _is_text(value):\n",
        "    value = str(value)\n    if _is_text(value):\n",
        "server/test_functions.py",
    ),
    "principal-blank": Mutant(PRINCIPALS, ' and value.strip() != ""', "", CALLER_TESTS),
    "principal-parts": Mutant(PRINCIPALS, "part is not None and not _is_text(part)", "False", CALLER_TESTS),
    "principal-claims": Mutant(
        PRINCIPALS, "    raise _unusable(name, value)\n", "    return str(value)\n", CALLER_TESTS
    ),
    "principal-once": Mutant(
        "_server/decide.py", "request.read_caller()  # a session may begin with the answer", "pass", CALLER_TESTS
    ),
    "async-function": Mutant(
        "_session/functions.py", "if is_generator or (", "if False and (", "server/test_functions.py"
    ),
    "async-answer": Mutant(
        "_session/functions.py",
        "return inspect.isawaitable(value) or inspect.isasyncgen(value)",
        "return False",
        "server/test_functions.py",
    ),
    "client-subject": Mutant(
        *("_session/claims.py", "self.is_client is None and self.subject == self.client_id", "False", CALLER_TESTS)
    ),
    "client-claims": Mutant(PRINCIPALS, "_is_of_client(claims, subject) or (", "(", CALLER_TESTS),
    "client-lists": Mutant(PRINCIPALS, "isinstance(claim, (list, tuple, set, frozenset)) and", "False and", VERIFIED),
    "client-unknown": Mutant(PRINCIPALS, "is_same and _say_nothing(claims)", "False", VERIFIED),
    "client-renamed": Mutant(PRINCIPALS, 'getattr(token, "original_client_id", None)', "None", VERIFIED),
    "identity-first": Mutant(
        PRINCIPALS,
        '_text("user.identity", user.identity)',
        '_text("user.identity", getattr(user, "username", None) or user.identity)',
        VERIFIED,
    ),
    "principal-subclass": Mutant(PRINCIPALS, "if type(value) is not Principal:", "if False:", VERIFIED),
    "client-list": Mutant(
        "_server/context.py", "principal is None or warns_of_client(principal)", "principal is None", CALLER_TESTS
    ),
    "client-handles": Mutant("handles.py", "warn_of_holder(identified(", "(identified(", KEPT_HANDLES),
    "fork-handles": Mutant("handles.py", " and bound in {False, session.ref}", "", KEPT_HANDLES),
    "lost-work": Mutant("_session/functions.py", "elif is_lost(outcome):", "elif False:", "server/test_functions.py"),
    "clock-unit": Mutant(
        "_session/functions.py", "not _IN_2020 <= now <= _IN_2100 and", "False and", "server/test_functions.py"
    ),
    "client-end-all": Mutant(
        "_server/operator.py", "if not principal.can_be_user:", "if False:", "server/test_sessions.py"
    ),
    # session ids
    "expiry": Mutant(JWT, "if now < claims.expires_at:", "if now < claims.expires_at + 1:", TOKENS),
    "future-id": Mutant(JWT, "issued_at - MAX_CLOCK_SKEW <= now", "issued_at - MAX_CLOCK_SKEW <= now + 1", TOKENS),
    "principal": Mutant(JWT, "if not verified.belongs_to(principal):", "if False:", TOKENS),
    "anonymous-principal": Mutant(JWT, "return principal is None", "return True", TOKENS),
    "kind": Mutant(JWT, "if not claims.kind == kind:", "if False:", f"{TOKENS} {COOKIE_TESTS}"),
    "issuer": Mutant(JWT, "if not claims.issuer == self.issuer:", "if False:", TOKENS),
    "audience": Mutant(JWT, "if not claims.audience == self.audience:", "if False:", TOKENS),
    "algorithm": Mutant(JWT, "if not stated.alg == key.algorithm:", "if False:", TOKENS),
    "signature": Mutant(JWT, "if not key.verify(signed, signature):", "if False:", TOKENS),
    "header-members": Mutant(JWT, "header.count(b'\"') == 12", "header.count(b'\"') >= 12", TOKENS),
    "header-escapes": Mutant(JWT, " and _BACKSLASH not in header", "", TOKENS),
    "null-claims": Mutant(JWT, "if value is None and name in _NAMES:", "if False:", TOKENS),
    "token-size": Mutant(JWT, "len(token) <= self._max_bytes)", "len(token) <= self._max_bytes + 1)", TOKENS),
    "removed-key": Mutant(JWT, "verified is not None and verified.ring is ring", "verified is not None", TOKENS),
    "token-cache-bound": Mutant(JWT, "if len(self._young) >= self._generation:", "if False:", TOKENS),
    # sealed state and ids
    "seal-kid": Mutant(SEAL, "encode_fields(key.kid, claims.jti,", "encode_fields('', claims.jti,", STATE),
    "seal-jti": Mutant(SEAL, "(key.kid, claims.jti, ", "(key.kid, '', ", STATE),
    "seal-principal": Mutant(SEAL, "claims.jti, claims.subject, ", "claims.jti, '', ", STATE),
    "seal-audience": Mutant(SEAL, "claims.subject, claims.audience)", "claims.subject)", STATE),
    "seal-purpose": Mutant(
        SEAL,
        'Seal("bridge", encode_fields("mcp-sessions/bridge"))',
        'Seal("state", encode_fields("mcp-sessions/state", VERSION))',
        STATE,
    ),
    "state-size": Mutant(SEAL, "len(token) <= max_bytes)", "len(token) <= max_bytes + 1)", STATE),
    "future-state": Mutant(SEAL, "last_seen <= now + MAX_CLOCK_SKEW", "last_seen <= now + MAX_CLOCK_SKEW + 1", STATE),
    "bridge-seal": Mutant(SEAL, 'raise SessionNotFound("bridge_seal", ref=claims.ref)', "return None", STATE),
    # keys
    "key-length": Mutant(KEYS, "MIN_SECRET_BYTES: Final = 32", "MIN_SECRET_BYTES: Final = 31", KEY_TESTS),
    "key-bytes": Mutant(KEYS, "len(set(secret)) < MIN_DISTINCT", "len(set(secret)) + 1 < MIN_DISTINCT", KEY_TESTS),
    "key-repeats": Mutant(KEYS, " or secret in (secret + secret)[1:-1]", "", KEY_TESTS),
    "password-place": Mutant("_server/option_types.py", "_not_by_reference(_secret)", "_secret", OPTIONS),
    "key-lookalike": Mutant(
        KEYS, "lookalike = secret.startswith(_NEVER_SECRET) or", "lookalike =", "test_advisories.py"
    ),
    "key-placeholder": Mutant(PLACEHOLDERS, "if pattern.search(text)), None)", "if False), None)", PLACEHOLDER_TESTS),
    "key-published": Mutant(PLACEHOLDERS, "known in lowered for", "known == '' for", PLACEHOLDER_TESTS),
    "key-words": Mutant(PLACEHOLDERS, "steps=(0,)) < _MIN_REST:", "steps=(0,)) < 0:", PLACEHOLDER_TESTS),
    "key-sequence": Mutant(
        PLACEHOLDERS, "_without_runs(text, steps=(-1, 0, 1))", "_without_runs(text, steps=())", PLACEHOLDER_TESTS
    ),
    "key-encoded": Mutant(PLACEHOLDERS, "    if _is_simple(_decoded(text)):", "    if False:", PLACEHOLDER_TESTS),
    "key-appearance": Mutant(
        PLACEHOLDERS, 'normalize("NFKC", text) if category(one) != "Cf"', "text", PLACEHOLDER_TESTS
    ),
    "key-mark": Mutant(KEYS, '.strip("\\ufeff")', "", PLACEHOLDER_TESTS),
    "key-location": Mutant(
        "_tokens/keyfile.py", "if location is None:", "if location is None or above:", PLACEHOLDER_TESTS
    ),
    # inner requests
    "inner-over": Mutant(SESSION, "if self._state._closed or self._answered:", "if False:", INNER),
    "inner-answered": Mutant(SESSION, "if self._state._closed or self._answered:", "if self._state._closed:", INNER),
    "inner-caller": Mutant(SESSION, "return caller is None or caller == self._principal", "return True", INNER),
    # messages
    "nesting": Mutant(RPC, "if size > max_nesting and ", "if False and ", f"{RPC_TESTS} server/test_limits.py"),
    "nesting-limit": Mutant(JSON, "initial=depth)) > limit:", "initial=depth)) > limit + 1:", RPC_TESTS),
    "nesting-pieces": Mutant(JSON, "_PIECE: Final = 1024", "_PIECE: Final = 1 << 30", COSTS),
    "member-count": Mutant(JSON, 'raise refusal("too_many_members") from None', "pass", f"{RPC_TESTS} {COSTS}"),
    "array-size": Mutant(RPC, "_first_items(max_batch + 1)", "_first_items(_MANY + 1)", COSTS),
    "duplicate-members": Mutant(JSON, 'raise refusal("duplicate_member")', "return", RPC_TESTS),
    "member-case": Mutant(JSON, 'raise refusal("member_case")', "return", RPC_TESTS),
    "byte-order-mark": Mutant(JSON, 'raise refusal("byte_order_mark")', "return", RPC_TESTS),
    "batch-size": Mutant(RPC, "if len(items) > max_batch:", "if len(items) > max_batch + 1:", RPC_TESTS),
    "batch-rest": Mutant(RPC, "if len(read) < len(items):", "if False:", RPC_TESTS),
    "id-type": Mutant(RPC, 'raise refusal("id_not_string_or_integer")', "return raw", RPC_TESTS),
    "method-type": Mutant(RPC, 'raise refusal("method_not_string")', 'method = ""', RPC_TESTS),
    "header-count": Mutant(
        "_protocol/headers.py", "if len(copies) > 1:", "if len(copies) > 2:", "server/test_middleware.py"
    ),
    "body-size": Mutant(BODY, "len(whole) > max_bytes:", "len(whole) > max_bytes + 1:", BODY_TESTS),
    "body-pieces": Mutant(BODY, "if body.tell() > max_bytes:", "if body.tell() > max_bytes + 1:", BODY_TESTS),
    "body-time": Mutant(BODY, "anyio.move_on_after(timeout)", "anyio.move_on_after(None)", BODY_TESTS),
    "body-coding": Mutant(BODY, 'raise refusal("content_encoding")', "return", BODY_TESTS),
    "mirror": Mutant(
        "_dialects/transport.py",
        " or own.id == header):",
        " or True):",
        "server/test_decide.py",
    ),
    "envelope-version": Mutant(
        "_protocol/envelope.py",
        "if stated != version:",
        "if False:",
        f"server/test_decide.py {ANSWER_TESTS}",
    ),
    "envelope-method": Mutant(
        "_protocol/envelope.py",
        "if methods != [message.method]:",
        "if False:",
        f"server/test_decide.py {ANSWER_TESTS}",
    ),
    # policies
    "policy-unread-name": Mutant(
        POLICY, "(name := target()) is None or name in names", "(name := target()) in names", POLICIES
    ),
    "policy-uris": Mutant(POLICY, 'if TARGETS.get(method) == "uri":', "if False:", POLICIES),
    "policy-judge": Mutant(POLICY, "if isinstance(answer, bool):\n", "if True:\n", POLICIES),
    "policy-any-type": Mutant(
        REQUEST,
        "    if not rules.reads_everything:\n        return False\n",
        "    return False\n",
        "server/test_paths.py::test_a_policy_judges_every_body_that_begins_as_json_does",
    ),
    "policy-encodings": Mutant(
        *(BODY, ".lstrip(_BEFORE_JSON)", ".lstrip()"),
        "server/test_paths.py::test_a_policy_judges_every_body_that_begins_as_json_does",
    ),
    "method-case": Mutant(
        REQUEST,
        'request.scope["method"] = request.scope["method"].upper()',
        "pass",
        "server/test_paths.py",
    ),
    "method-routed": Mutant(
        *("_server/routing.py", 'if scope["method"] in WITHOUT_BODY and', 'if scope["method"] != "POST" and'),
        "server/test_paths.py",
    ),
    "method-other": Mutant(
        REQUEST,
        " or (rules.reads_everything and method not in WITHOUT_BODY)",
        "",
        "server/test_paths.py",
    ),
    "route-found-late": Mutant(
        *("_server/routing.py", "end if isinstance(end, Route) else None", "end  # type: ignore[assignment]"),
        "server/test_paths.py::test_first_request_fixes_no_route_for_process",
    ),
    "policy-path": Mutant(
        "_server/middleware.py",
        "if error is not None and has_rules",
        "if False and has_rules",
        "server/test_placement.py",
    ),
    "policy-path-template": Mutant(
        "_server/startup_checks.py", "(path is None or _may_match(part, path))", "True", "server/test_placement.py"
    ),
    "policy-path-files": Mutant(
        *("_server/startup_checks.py", "or not _serves_elsewhere(app, endpoint)):", "or True):"),
        "server/test_placement.py",
    ),
    "policy-path-static": Mutant(
        *("_server/startup_checks.py", 'if is_a(part, "StaticFiles"):', "if False:"), "server/test_placement.py"
    ),
    "policy-path-doubt": Mutant(
        *("_server/routing.py", 'if self.is_ambiguous and scope["method"]', 'if False and scope["method"]'),
        "server/test_placement.py",
    ),
    "policy-path-middleware": Mutant(
        *("_server/startup_checks.py", "if not keeps_path(part):", "if False:"), "server/test_placement.py"
    ),
    "policy-path-included": Mutant(
        *("_server/route_tree.py", "        yield from _included(part)\n", "        yield part.original_router\n"),
        "server/test_placement.py",
    ),
    "policy-lenient": Mutant(
        "_server/request.py",
        "may_pass and not may_evade(request.body, rules.concern)",
        "may_pass",
        "server/test_paths.py",
    ),
    "policy-names": Mutant(
        "_server/rule_checks.py",
        "return MISSPELT % (name, method, near)",
        "continue",
        "integration/test_named_rules.py",
    ),
    "policy-dispatch": Mutant(
        "_server/rule_checks.py",
        "return DISPATCHES % (name, method, name)",
        "return None",
        "integration/test_named_rules.py",
    ),
    "policy-dispatch-name": Mutant(
        "_server/rule_checks.py",
        "            _log.warning(MAY_DISPATCH",
        "            _log.debug(MAY_DISPATCH",
        "integration/test_named_rules.py",
    ),
    "policy-namespace": Mutant(
        "_server/rule_checks.py", 'if one.endswith(f"_{name}"):  #', "if False:  #", "integration/test_named_rules.py"
    ),
    "legacy-unproven": Mutant(
        "_dialects/leading.py",
        "return False if recorder.speaks and recorder.error_code in _SPEAKS_OTHERWISE else None",
        "return False",
        "server/test_transport.py",
    ),
    "legacy-status": Mutant(ANSWERS, "return self.status in _SPEAKING", "return True", "server/test_transport.py"),
    "legacy-forever": Mutant(
        "_dialects/leading.py", "or now < self._asked_at + _NO_HOLDS", "or True", "server/test_transport.py"
    ),
    "admission-status": Mutant(ANSWERS, "return self.speaks and (self", "return (self", ANSWER_TESTS),
    # what reaches the application
    "meta-session": Mutant(
        "_dialects/draft.py",
        "request.outgoing = rewrite.without_session(message)",
        "request.outgoing = request.current_message.body",
        CONFIDENTIAL,
    ),
    "reply-session": Mutant(
        "_protocol/rewrite.py", ' or not (_KEY in body or b"\\\\" in body)', " or True", CONFIDENTIAL
    ),
    "batch-reply": Mutant(
        "_dialects/draft.py",
        " or rewrite.without_session(message) != message.body",
        "",
        CONFIDENTIAL,
    ),
    "frame-body": Mutant(
        REQUEST,
        "    with watch(request, plan, refused) if",
        "    body = request.body\n    with watch(request, plan, refused) if",
        CONFIDENTIAL,
    ),
    "frame-unread": Mutant(
        REQUEST,
        "    with watch(request, plan, refused) if",
        "    shown = request.headers.session_id\n    with watch(request, plan, refused) if",
        CONFIDENTIAL,
    ),
    "frame-handler": Mutant(
        REQUEST,
        "        refused = (await cause_of(refusal, request.runtime)).with_traceback(None)\n",
        "        await refuse(request, plan, refusal, rules.dialects)\n        return\n",
        CONFIDENTIAL,
    ),
    "upgrade-credentials": Mutant(
        "_server/middleware.py",
        "extract_credentials(self._request(scope, receive, send), self._dialects)",
        "pass",
        CONFIDENTIAL,
    ),
    "guard-credentials": Mutant(
        REQUEST,
        "            refused = refused or refusal\n",
        "            raise\n",
        COOKIE_TESTS,
    ),
    "other-client": Mutant(
        "_tokens/jwt.py",
        "Principal(None, principal.issuer, principal.subject)",
        "Principal(None, None, principal.subject)",
        "server/test_logs.py",
    ),
    # cookies
    "cookie-scheme": Mutant(
        "_dialects/cookie.py",
        'b"" if not request.is_secure else',
        'b"" if True else',
        COOKIE_TESTS,
    ),
    "cookie-host": Mutant(
        "_dialects/cookie.py",
        '_HOST if path == "/" else _SECURE',
        "_SECURE",
        COOKIE_TESTS,
    ),
    "page-origin": Mutant(
        ORIGINS, "page == _origin(scheme, hosts[0].lower())", "True", f"{COOKIE_TESTS} {CALLER_TESTS}"
    ),
    "page-scheme": Mutant(ORIGINS, "page == _origin(scheme, ", "page == _origin(of_page, ", COOKIE_TESTS),
    "page-headers": Mutant(ORIGINS, "if len(origins) != 1 or len(hosts) != 1:", "if False:", COOKIE_TESTS),
    "page-site": Mutant(
        ORIGINS, "if sites and sites not in _OWN_SITES:", "if False:", f"{COOKIE_TESTS} {CALLER_TESTS}"
    ),
    "page-principal": Mutant(
        "_dialects/remembered.py",
        " or not request.is_own_page:",
        ":",
        "server/test_principals.py",
    ),
    "cookie-ports": Mutant(
        "_dialects/cookie.py",
        "place_of(port_of(request.headers), request.client_path)",
        'b""',
        "server/test_proxies.py",
    ),
    "proxy-trust": Mutant(
        "_server/context.py", 'if self.trusts_proxy else ""', 'if True else ""', "server/test_proxies.py"
    ),
    "conversation-user": Mutant(
        KEYS, 'encode_fields("name", *whose, *fields)', 'encode_fields("name", *fields)', CHATS
    ),
    "conversation-source": Mutant("_dialects/per_conversation.py", 'f"{named.source} {named.id}"', "named.id", CHATS),
    "conversation-audience": Mutant(
        "_dialects/per_conversation.py",
        "ring.names(user, self.kind, request.runtime.audience, credential.id)",
        "ring.names(user, self.kind, credential.id)",
        CHATS,
    ),
    "conversation-client": Mutant(
        *("_dialects/per_conversation.py", "if request.user_or_warn() is None:", "if request.principal is None:", CHATS)
    ),
    "conversation-flood": Mutant(
        "_dialects/per_conversation.py", "is_full = len(used_at) >= MAX_CONVERSATIONS", "is_full = False", CHATS
    ),
    "conversation-flood-reads": Mutant(
        "_dialects/per_conversation.py", "            used_at[name] = entry.seen_at\n", "", CHATS
    ),
    "argument-holder": Mutant(
        CARRIED,
        "handles.Holder(runtime.audience, request.principal)\n        try:",
        "handles.Holder(runtime.audience)\n        try:",
        CARRIED_TESTS,
    ),
    "argument-list": Mutant(
        *(CARRIED, 'carried.handle = None if carried.begins else text or ""', "carried.handle = None", CARRIED_TESTS)
    ),
    "argument-error": Mutant(
        CARRIED, "        if session is None:\n            raise SessionEnded\n", "", CARRIED_TESTS
    ),
    "argument-twice": Mutant(
        "_protocol/tools.py", "        check_level(arguments, found)\n", "        pass\n", CARRIED_TESTS
    ),
    "argument-idle": Mutant(CARRIED, " if claims.subject is not None else min(", " if True else min(", CARRIED_TESTS),
    "argument-hidden": Mutant(
        *(CARRIED, "carried.handle, carried.has_argument = text, True", "carried.handle = text", CARRIED_TESTS)
    ),
    "argument-batch": Mutant(CARRIED, "return has_handle or message", "return message", CARRIED_TESTS),
    "cookie-twice": Mutant(
        "_dialects/cookie.py",
        "if len(values) == 1 else UNREADABLE",
        "if values else UNREADABLE",
        COOKIE_TESTS,
    ),
    "cookie-script": Mutant(
        "_dialects/cookie.py",
        "; HttpOnly; SameSite=Strict",
        "; SameSite=Strict",
        COOKIE_TESTS,
    ),
    # sessions
    "revocation": Mutant(
        SESSIONS, "if not (found.status is LIVE or (is_offered", "if not (True or (is_offered", ANSWER_TESTS
    ),
    "idle-expiry": Mutant(SESSIONS, "if not now < ends_at:", "if not now < ends_at + 1:", LIVE),
    "store-away": Mutant(
        SESSIONS,
        "if not fail_open:\n            error.ref = claims.ref\n            raise\n        without",
        "if False:\n            error.ref = claims.ref\n            raise\n        without",
        LIVE,
    ),
    "foreign-client": Mutant(
        SESSIONS,
        'refused.reason in {"token_principal", "token_other_client"}',
        "False",
        "telemetry/test_outermost_span.py",
    ),
    "made-up-session": Mutant(
        "telemetry/_attributes.py",
        "server_id is None or server_ref(server_id) not in self._sessions",
        "server_id is None",
        "telemetry/test_sessions.py",
    ),
    "recheck": Mutant(
        RESPONSE, "is_late = self.recheck_at <= runtime.clock()", "is_late = False", f"{ANSWER_TESTS} {LIVE}"
    ),
    "recheck-after": Mutant(
        SESSIONS, "RECHECK_AFTER: Final = 1.0", "RECHECK_AFTER: Final = 2.0", f"{ANSWER_TESTS} {LIVE}"
    ),
    "observer": Mutant(
        "telemetry/_core.py",
        "except BaseException as error:  # noqa: BLE001  # also",
        "except ZeroDivisionError as error:  #",
        OBSERVERS,
    ),
    "observer-future": Mutant(
        "telemetry/_core.py",
        "except BaseException as error:  # noqa: BLE001  # also",
        "except Exception as error:  #",
        OBSERVERS,
    ),
    "log-handler": Mutant("_server/logs.py", "_log.handle = _handle  # type: ignore[method-assign]", "", OBSERVERS),
    "lost-registration": Mutant(
        MINTING,
        "        await _take_back(runtime, new, record)\n",
        "",
        "server/test_leftovers.py",
    ),
    "lost-registration-of-two": Mutant(
        MINTING, "if runtime.on_create is not None or await", "if True or await", "server/test_cookies.py"
    ),
    "state-json-size": Mutant(
        "_session/state.py", "if not len(payload) <= limit:", "if False:", "server/test_limits.py"
    ),
    "look-up-answers": Mutant(
        TOGETHER, "one.found = [next(answers) for _ in one.claims]", "one.found = [*answers]", "stores/test_together.py"
    ),
    "look-up-cancelled": Mutant(
        TOGETHER, "            self.waiting.extendleft(reversed(one.batch))\n", "", "stores/test_together.py"
    ),
    "look-up-errors": Mutant(TOGETHER, "one.error = copy(error)", "one.error = error", "stores/test_together.py"),
    "begin-pauses": Mutant(MINTING, "pause = min(2 * pause, _MAX_PAUSE)", "pause = _PAUSE", "server/test_leftovers.py"),
    "call-here": Mutant(RESUMPTION_FILE, "if self._terminate(ref, SessionEnded(ref=ref)):", "if False:", ENDED_CALLS),
    "call-elsewhere": Mutant(
        RESUMPTION_FILE, "                if found.status is not LIVE:", "                if False:", ENDED_CALLS
    ),
    "call-expiry": Mutant(RESUMPTION_FILE, "claims if not now < claim.expires_at]", "claims if False]", ENDED_CALLS),
    "call-of-server": Mutant(EARLY_END, "await self.request.runtime.streams.decided(call)", "pass", ENDED_CALLS),
    "call-of-two": Mutant(*(REQUEST, "(session._claims, *request.beside)", "(session._claims,)"), ENDED_CALLS),
    "call-away": Mutant(ANSWERS, "call is not None and call.id is not None and refusal.executed", "False", RESUMPTION),
    "call-executed": Mutant(EARLY_END, "refusal.executed = call is not None and call.id is not None", "pass", LATE),
    "late-answer": Mutant(
        EARLY_END,
        "if found.status is not LIVE)",
        "if False)",
        LATE,
    ),
    "preflight": Mutant(
        "_server/answers.py",
        "    if not request.runtime.preflight:\n        return True\n    recorder = await",
        "    if True:\n        return True\n    recorder = await",
        ANSWER_TESTS,
    ),
    "preflight-verdict": Mutant(
        ANSWERS, "self.error_code == _METHOD_NOT_FOUND", "self.error_code is not None", ANSWER_TESTS
    ),
    "owner-learns": Mutant(
        "_server/context.py",
        '{"reason": refusal.reason} if isinstance(refusal, _OWNER_LEARNS) else {}',
        '{"reason": refusal.reason}',
        f"{ANSWER_TESTS} server/test_principals.py",
    ),
    "no-store": Mutant(ANSWERS, "join(len(body))), _NO_STORE]", "join(len(body)))]", OWN_ANSWERS),
    "no-store-status": Mutant(ANSWERS, 'b"0"), _NO_STORE, *more]', 'b"0"), *more]', OWN_ANSWERS),
    "admission-delete": Mutant(
        ANSWERS,
        "recorder.status == HTTPStatus.METHOD_NOT_ALLOWED",
        "recorder.status in {404, 405}",
        OWN_ANSWERS,
    ),
    "admission-statuses": Mutant(
        "_dialects/transport.py",
        "frozenset({400, 404})",
        "frozenset({400, 401, 404})",
        "server/test_own_answers.py",
    ),
    "bridge-own-id": Mutant(
        "_dialects/transport.py",
        "not crossing.begins and ids == [crossing.server_id]",
        "not crossing.begins and ids",
        "server/test_transport.py",
    ),
    "hop-owner-proof": Mutant(
        "_affinity/frames.py",
        'if not hmac.compare_digest(answer[_NONCE:], _proof(key, "owner", name, nonces)):',
        "if False:",
        f"{SEVERAL}::test_nothing_is_sent_to_a_process_that_cannot_prove_itself",
    ),
    "hop-caller-proof": Mutant(
        "_affinity/frames.py",
        'if not hmac.compare_digest(await _read(reader, _PROOF), _proof(key, "caller", name, nonces)):',
        "if not await _read(reader, _PROOF):",
        f"{SEVERAL}::test_nothing_is_served_to_a_process_without_the_keys",
    ),
    "hop-sealed": Mutant(
        "_affinity/frames.py",
        "return bool(own.family == socket.AF_UNIX)",
        "return True",
        f"{SEVERAL}::test_frames_between_machines_are_sealed",
    ),
    "hop-once": Mutant(
        "_affinity/affinity.py",
        "None if HOP in scope or LOST in scope",
        "None if LOST in scope",
        f"{SEVERAL}::test_a_request_that_hopped_never_hops_again",
    ),
    "hop-folder": Mutant(
        "_affinity/workers.py",
        " or stat.S_IMODE(found.st_mode) != 0o700",
        "",
        f"{SEVERAL}::test_a_folder_that_others_can_enter_is_refused",
    ),
    "proved-death": Mutant(
        "_affinity/affinity.py",
        "if is_here and refused:",
        "if refused:",
        f"{SEVERAL}::test_a_session_of_an_owner_elsewhere_is_left_to_it",
    ),
    "owner-fence": Mutant(
        "_affinity/ownership.py",
        "        if ownership.owner != self._name:\n            raise",
        "        if False:\n            raise",
        f"{SEVERAL}::test_a_worker_whose_lease_lapsed_writes_nothing_more",
    ),
    "replay-headers": Mutant(
        "_dialects/takeover.py",
        'params.pop("_meta", None)',
        'params["headers"] = str(request.scope["headers"])',
        f"{SEVERAL}::test_no_credential_is_stored_for_a_takeover",
    ),
    "takeover-claim": Mutant(
        "_affinity/ownership.py",
        "return await self._store.compare_and_swap(place, KEY, stored, value)",
        "await self._store.write(place, KEY, value); return True",
        f"{SEVERAL}::test_parallel_requests_take_a_session_over_once",
    ),
    "question-epoch": Mutant(
        "_protocol/epochs.py", "if found[1] != str(epoch):", "if False:", "server/test_server_requests.py"
    ),
    "question-unmarked": Mutant(
        "_protocol/epochs.py", "        if original is None:", "        if False:", "server/test_server_requests.py"
    ),
    "event-mac": Mutant(
        EVENT_IDS, "hmac.compare_digest(signed[:_MAC_BYTES], self._mac(key, signed[_MAC_BYTES:]))", "True", EVENTS
    ),
    "event-audience": Mutant(EVENT_IDS, '"v1", issuer, audience)', '"v1", issuer)', EVENTS),
    "event-aliases": Mutant(
        "_tokens/event_ids.py", "claims.kind, claims.aliases)", "claims.kind)", "server/test_event_ids.py"
    ),
    "event-owner": Mutant(
        "_server/unread.py",
        "is_same_transport and is_callers(request, event)",
        "is_same_transport",
        EVENTS,
    ),
    "event-transport": Mutant(
        "_server/unread.py",
        "if is_same_transport and is_callers",
        "if is_callers",
        EVENTS,
    ),
    "event-session": Mutant(
        "_server/unread.py",
        "return named is None or request.upstream_id is not None",
        "return True",
        EVENTS,
    ),
    "event-header": Mutant(
        "_dialects/transport.py",
        "    is_always_sent: bool = True\n",
        "",
        EVENTS,
    ),
    "event-cookie": Mutant(
        "_dialects/cookie.py",
        "    is_always_sent: bool = True\n",
        "",
        EVENTS,
    ),
    "event-copies": Mutant(
        "_server/context.py", 'single_header(event_ids, "duplicate_event_header")', "event_ids[0]", EVENTS
    ),
    "event-method": Mutant(
        "_server/context.py",
        'method == "POST" and LAST_EVENT_ID not in self.headers.by_name',
        'method == "POST"',
        EVENTS,
    ),
    "event-signed": Mutant("_server/event_ids.py", "event = signer.signed(event)", "pass", EVENTS),
    "event-long": Mutant(
        "_protocol/sse.py", 'return b":" + line if signed is None', "return line if signed is None", SSE_TESTS
    ),
    "event-compressed": Mutant(
        RESPONSE,
        "if media_type == EVENTS and coding is not None and not",
        "if False and not",
        "server/test_response.py",
    ),
    "stream-live": Mutant(
        "_server/unread.py",
        "raise refusal_for_status(found.status, claims)",
        "return",
        RESUMPTION,
    ),
    "hook-lease": Mutant(
        LIFECYCLE,
        "None if self.on_end is None else LEASE",
        "None if self.on_end is None else 0",
        "server/test_endings.py",
    ),
    "fork-expiry": Mutant(
        "_server/minting.py",
        "origin.kind, expires_at=origin.expires_at)",
        "origin.kind)",
        FORKS,
    ),
    "fork-of-ended": Mutant(
        MINTING, "            raise refusal_for_status(found.status, origin)\n", "            pass\n", FORKS
    ),
    # limits and secrecy
    "create-limit": Mutant(
        "_server/principal.py",
        "if not spent < self.per_minute:",
        "if not spent <= self.per_minute:",
        "server/test_limits.py",
    ),
    "create-callers": Mutant(
        "_server/principal.py", " or len(self.created) < self.max_callers", " or True", "server/test_limits.py"
    ),
    "log-forgery": Mutant(
        "_server/logs.py", "ascii(event.method[:_MAX_METHOD])", "event.method", "server/test_logs.py"
    ),
    "refusal-counts": Mutant(
        "_server/logs.py", "if len(self._counts) >= MAX_COUNTED:", "if False:", "server/test_logs.py"
    ),
    "warned-apart": Mutant(
        *("_server/logs.py", "kind, now = (event.reason, event.ref)", "kind, now = (event.reason, None)"),
        "server/test_logs.py",
    ),
    "client-name-size": Mutant(
        *("_session/claims.py", "cut = self.client[:MAX_CLIENT_CHARS]", "cut = self.client"), "protocol/test_labels.py"
    ),
    "value-size": Mutant(
        *(
            "_session/data.py",
            "if len(encoded) <= self._max_value_bytes:",
            "if len(encoded) <= self._max_value_bytes + 1:",
        ),
        "session/test_data.py",
    ),
    "data-keys": Mutant(
        *("_session/data.py", "if isinstance(one, dict) and not isinstance(key, str)", "if False"),
        "session/test_data.py",
    ),
    "reserved-names": Mutant(
        *("_session/data.py", "if type(key) is ReservedName:", 'if "\\0" in str(key):'),
        "integration/test_handles.py::test_no_name_in_data_mints_a_handle",
    ),
    "handle-holder": Mutant("handles.py", " and owner in owners", "", "integration/test_handles.py"),
    # stores
    "quota-audience": Mutant(
        *("_session/data.py", 'f"{self.subject} {self.audience}"', "self.subject"),
        "stores/test_contract.py server/test_audiences.py",
    ),
    "cutoff": Mutant(BASE, "facts.ended or issued_at < facts.cutoff_time", "facts.ended", MEMORY_TESTS),
    "epoch": Mutant(BASE, "facts.epoch <= issued_at", "True", "stores/test_every_store.py"),
    "unrecorded": Mutant(
        BASE,
        "if facts.seen_at is None:\n        return SessionStatus.UNRECORDED",
        "if facts.seen_at is None:\n        return LIVE",
        MEMORY_TESTS,
    ),
    "idle-touch": Mutant(BASE, "return now >= seen_at + resolution(idle_timeout)", "return False", MEMORY_TESTS),
    "idle-status": Mutant(BASE, "LIVE if now < idle_at(", "LIVE if now <= idle_at(", MEMORY_TESTS),
    "ended-data": Mutant(BASE, "if has_ended or namespace.expires_at", "if namespace.expires_at", MEMORY_TESTS),
    "principal-quota": Mutant(MEMORY, "(since) >= max_sessions:", "(since) > max_sessions:", MEMORY_TESTS),
    "cutoff-alias": Mutant(MINTING, "aliases=ring.signing.aliases(principal)", "aliases=None", "cli/test_end_all.py"),
    "cutoff-all-names": Mutant(
        MEMORY, "cutoff_time(*claims.owners)", "cutoff_time(claims.subject)", "cli/test_end_all.py " + MEMORY_TESTS
    ),
    "cutoff-use": Mutant("stores/_sql.py", "cutoff_time=max(", "cutoff_time=min(", "cli/test_end_all.py"),
    "cutoff-use-redis": Mutant("stores/_redis.py", "(None, *one.owners)", "(None, one.subject)", "cli/test_end_all.py"),
    "cutoff-text": Mutant(
        *("_server/operator.py", 'checked(principal, "this is", remedy=_AS_SEEN)', "pass", "cli/test_end_all.py")
    ),
    "cutoff-century": Mutant(
        *("_server/operator.py", "= option_types.CENTURY,", "= 366 * 24 * 3600,", "server/test_sessions.py")
    ),
    "cutoff-parts": Mutant(
        "_server/operator.py", "await self._revoke_before(moment, alias)", "pass", "cli/test_end_all.py"
    ),
    "cutoff-lifetime": Mutant(
        *("_server/operator.py", "moment + self._lifetime + MAX_CLOCK_SKEW", "moment + self._lifetime"),
        "server/test_sessions.py",
    ),
    "client-origin": Mutant("client/_origin.py", "and target != origin:", "and False:", "integration/test_origin.py"),
    "client-origin-port": Mutant(
        "client/_origin.py",
        'decode("ascii"), url.port or',
        'decode("ascii"), None and',
        "integration/test_origin.py",
    ),
    "client-origin-form": Mutant(
        *("client/_origin.py", 'http_client.build_request("POST", url).url', "type(http_client.base_url)('/mcp')"),
        "integration/test_origin.py",
    ),
    "failed-frames": Mutant(SECRETS, "clear_frames(one.__traceback__)", "pass", "test_secrets.py"),
    "failed-causes": Mutant(SECRETS, "one.__cause__ = one.__context__ = None", "pass", "test_secrets.py"),
    "failed-arguments": Mutant(SECRETS, "del args, kwargs", "pass", "test_secrets.py"),
    "options-repr": Mutant(
        "_server/option_types.py", "CheckedOptions(RedactedRepr)", "CheckedOptions(dict[str, Any])", "test_secrets.py"
    ),
    "location-host": Mutant("stores/_place.py", "if not valid_hosts or not", "if not", "test_secrets.py"),
    "location-port": Mutant(
        "stores/_place.py", "all(_is_port(str(port)) for port in ports)", "True", "test_secrets.py"
    ),
    "location-database": Mutant("stores/_place.py", "not _NAME.fullmatch(str(database))", "False", "test_secrets.py"),
    "file-folder": Mutant(FILES, "if _others_write(folder, found):", "if False:", FILE_TESTS),
    "file-folder-owner": Mutant(FILES, "if not _is_trusted(found):", "if False:", FILE_TESTS),
    "file-group": Mutant(FILES, "& stat.S_IWGRP)", "& 0)", FILE_TESTS),
    "file-acl": Mutant(FILES, " and not _has_acl(path))", ")", FILE_TESTS),
    "file-link": Mutant(FILES, "os.lstat(name + end, dir_fd", "os.stat(name + end, dir_fd", FILE_TESTS),
    "file-links-above": Mutant(FILES, "_check_link(step)", "pass", FILE_TESTS),
    "file-owner": Mutant(FILES, "if not _is_trusted(found) or (by_mode and", "if (by_mode and", FILE_TESTS),
    "file-mode": Mutant(FILES, "or (by_mode and _others_write(path, found)):", "or False:", FILE_TESTS),
    "file-journal": Mutant(FILES, '("-wal", "-shm", "-journal")', '("-wal", "-shm")', FILE_TESTS),
    "file-above": Mutant(FILES, "        _check_above(folder)\n", "", FILE_TESTS),
    "file-exchanged": Mutant(FILES, "    return is_foreign or (", "    return (", FILE_TESTS),
    "file-opened": Mutant(FILES, "not in {(one[1], one[2]) for", "in {() for", FILE_TESTS),
    "file-exchanged-store": Mutant(
        "stores/_sqlite_file.py", "if was_exchanged(path, opened_before):", "if False:", FILE_TESTS
    ),
    "file-exchanged-storage": Mutant(
        "client/_storage.py", "if was_exchanged(str(path), before):", "if False:", FILE_TESTS
    ),
    "file-of-client": Mutant("client/_storage.py", "check_private(str(path), ", "dict(", FILE_TESTS),
    "file-of-keys": Mutant("_tokens/keyfile.py", "read_private(str(path))", "path.read_bytes()", FILE_TESTS),
    "file-platform": Mutant(FILES, 'os.name != "posix"', 'os.name == ""', "test_platforms.py"),
    "file-durable": Mutant(
        "stores/_sqlite_file.py",
        "synchronous = FULL",
        "synchronous = OFF",
        "stores/test_sqlite_file.py stores/test_sqlite.py",
    ),
    "fork-rest": Mutant("stores/_sqlite.py", "with self._busy_lock:", "with suppress():", "stores/test_sqlite.py"),
    "group-commit": Mutant(
        "stores/_sqlite.py",
        "change.future.set_exception(copy.copy(error))",
        "change.future.set_result(None)",
        "stores/test_sqlite.py",
    ),
    "sqlite-log-size": Mutant(
        "stores/_sqlite_file.py", "journal_size_limit = {_LOG_BYTES}", "journal_size_limit = -1", SQLITE_FILE
    ),
    "sqlite-schema": Mutant("stores/_sqlite_file.py", "trusted_schema = OFF", "trusted_schema = ON", SQLITE_FILE),
    "sqlite-older-copy": Mutant(
        "stores/_sqlite_file.py",
        "if changes < self._changes:",
        "if False:",
        "stores/test_mishaps.py",
    ),
    "sql-emptied": Mutant(
        "stores/_sql_text.py", "EXISTS (SELECT 1 FROM sessions WHERE ref = '')", "1 = 1", "stores/test_mishaps.py"
    ),
    "sql-emptied-cutoffs": Mutant(
        "stores/_sql_text.py",
        "AND EXISTS (SELECT 1 FROM cutoffs WHERE audience = '' AND subject = '')",
        "",
        "stores/test_mishaps.py",
    ),
    "sql-upgrade": Mutant("stores/_sql_text.py", "SELECT 'named ' ||", "SELECT 'other ' ||", "stores/test_upgrade.py"),
    "postgres-purge": Mutant("stores/_postgres.py", 'lock="FOR UPDATE"', 'lock=""', "stores/test_postgres.py"),
    "postgres-pooled": Mutant(
        "stores/_postgres.py", "pid != connection.info.backend_pid", "False", "stores/test_mishaps.py"
    ),
    "postgres-retry": Mutant(
        "stores/_postgres_pool.py", "held[0].closed and repeatable", "held[0].closed", "stores/test_postgres.py"
    ),
    "redis-epoch": Mutant(REDIS, "ARGV[1], 'NX'", "'0'", "stores/test_redis_durability.py"),
    "redis-replica": Mutant(REDIS, "made.err, 'READONLY'", "made.err, 'none'", "stores/test_redis.py"),
    "redis-eviction": Mutant(
        "stores/_redis_durability.py",
        'values["maxmemory_policy"] != "noeviction"',
        "False",
        "stores/test_redis_durability.py",
    ),
    "redis-epoch-clock": Mutant(
        "stores/_redis.py",
        "now = max(self._server_clock(), float(self._epoch or 0) + TICK)",
        "now = self._server_clock()",
        "stores/test_redis_durability.py",
    ),
    "sql-store-clock": Mutant(
        "stores/_sql.py", "now = await self._store_time(ask=True)", "now = self._clock()", "stores/test_clocks.py"
    ),
    "sql-forgets-late": Mutant(
        "stores/_sql.py",
        "math.floor(await self._store_time() - self._leeway)",
        "math.floor(self._clock() - self._leeway)",
        "stores/test_clocks.py",
    ),
    "redis-store-clock": Mutant(
        "stores/_redis.py",
        "now = self._server_clock()\n                m",
        "now = self._clock()\n                m",
        "stores/test_clocks.py",
    ),
    "redis-forgets-late": Mutant(
        "stores/_redis.py",
        "self._leeway - self._server_clock()",
        "self._leeway - self._clock()",
        "stores/test_clocks.py",
    ),
    "machine-clock": Mutant("stores/_clocks.py", "if jump > TOLERANCE:", "if False:", "stores/test_clocks.py"),
    "machine-agrees": Mutant(
        "stores/_clocks.py",
        "elif ahead_of_steady < self._ahead_of_steady - TOLERANCE:",
        "elif False:",
        "stores/test_mishaps.py",
    ),
}
"""By the name under which `docs/security.md` calls them."""


def place_of(mutant: Mutant) -> Path:
    return Path(PACKAGE, mutant.file)


def main(names: list[str]) -> int:
    """Run the mutants of these names, or all, and return 1 where the tests of one do not notice it."""
    chosen = {name: MUTANTS[name] for name in names or MUTANTS}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        ignored = shutil.ignore_patterns(
            ".git", ".venv", ".nox", "__pycache__", "_build", "node_modules", ".mypy_cache"
        )
        shutil.copytree(ROOT, copy, ignore=ignored)
        needed = sorted({mutant.tests for mutant in chosen.values()})
        failed = [f"the tests fail without a mutant: {tests}" for tests in needed if not _passes(copy, tests)]
        for name, mutant in chosen.items():
            path = copy / place_of(mutant)
            original = path.read_text("utf-8")
            path.write_text(original.replace(mutant.old, mutant.new), "utf-8")
            survives = _passes(copy, mutant.tests)
            path.write_text(original, "utf-8")
            failed += [f"{name} survives {mutant.tests}"] if survives else []
            print(f"{name}: {'survives' if survives else 'noticed'}", flush=True)
    print(*failed, f"{len(chosen)} mutants", sep="\n")
    return int(bool(failed))


def _passes(copy: Path, tests: str) -> bool:
    """Whether tests pass in the copy; a mutant that makes them hang was noticed."""
    environment = {**os.environ, "PYTHONPATH": str(copy / "middleware"), "PYTHONHASHSEED": "0"}
    paths = [f"tests/{path}" for path in tests.split()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not nightly", *paths]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in {0, 1}:
        raise SystemExit(f"{paths}: pytest ended with {done.returncode}\n{done.stdout.decode()[-2000:]}")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
