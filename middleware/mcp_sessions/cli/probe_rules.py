"""One server in one era while it is examined: how it is spoken to, and the sessions that are held there.

What an act makes is held here under a name, so that later acts find it and all of it can be deleted in the end.

What a server is put through, one act for each rule. An act tells what it saw where that is not what the rule says.

Acts run in the order of `rules.RULES`, on one pair of sessions, and share what the earlier ones made. Nothing that an
act tells holds an id, since ids are credentials, or anything else that the server wrote.
Sources: the data-layer sessions draft; MCP 2026-07-28; SEP-2243.

The rules that a server is held to, in the order in which they are tried, each with the clause that asks for it.

This table is the probe: the report and the documentation are rendered from it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from .._protocol.jsonrpc import SESSION_KEY
from .probe_client import Answer, Speech

Session = dict[str, Any]


class Skipped(Exception):  # nothing is wrong
    """A rule does not apply. The message says why."""


@dataclass
class Case:
    """One server in one era.

    Args:
        speech: How to speak to it.
        held: The sessions that are held, by what the acts call them.
    """

    speech: Speech
    held: dict[str, Session] = field(default_factory=dict)

    def session(self, name: str) -> Session:
        """A session that an earlier act made."""
        if name not in self.held:
            raise Skipped("no session was created")
        return self.held[name]

    def use(self, session: object, **how: Any) -> Answer:
        """A harmless request in a session."""
        return self.speech.ask(self.speech.harmless, session=session, **how)

    def create(self, name: str) -> str | None:
        """Create a session and hold it; what was seen where there is none."""
        answer = self.speech.ask("sessions/create")
        return self.hold(name, answer)

    def hold(self, name: str, answer: Answer) -> str | None:
        """Hold the session in a result; what was seen where there is none."""
        session = (answer.result or {}).get("session")
        if not isinstance(session, dict) or not _is_visible(session.get("sessionId")):
            return f"{answer}" if answer.result is None else "no sessionId of visible ASCII in result.session"
        self.held[name] = session
        return None

    def let_go(self) -> None:
        """Delete what is held."""
        for session in self.held.values():
            self.speech.ask("sessions/delete", session=sent(session))
        self.held.clear()


def sent(session: Session) -> Session:
    """A session as requests carry it."""
    return {name: session[name] for name in ("sessionId", "state") if isinstance(session.get(name), str)}


def _is_visible(text: object) -> bool:
    return isinstance(text, str) and bool(text) and all("!" <= character <= "~" for character in text)


NOT_FOUND: Final = -32043
INVALID_PARAMS: Final = -32602
PRINCIPAL_REQUIRED: Final = -31046
PARALLEL: Final = 10  # requests at once
OVERSIZED: Final = 20_000  # bytes of an id

Act = Callable[[Case], str | None]
"""Does one thing to a server; tells what it saw where the rule does not hold, else None. May raise `Skipped`."""


def _echo(answer: Answer) -> Session:
    meta = (answer.result or {}).get("_meta")
    echo = meta.get(SESSION_KEY) if isinstance(meta, dict) else None
    return echo if isinstance(echo, dict) else {}


def _unless(holds: bool, answer: Answer) -> str | None:  # it reads as a sentence
    return None if holds else f"{answer}"


def _not_found(answer: Answer, session_id: str) -> str | None:
    if answer.code != NOT_FOUND:
        return f"{answer}"
    data = (answer.error or {}).get("data")
    named = data.get("sessionId") if isinstance(data, dict) else None
    return None if named == session_id else f"{answer}, whose data does not repeat the sessionId"


# --- said and created ----------------------------------------------------------------------------


def advertised(case: Case) -> str | None:
    """Sessions are said to be there."""
    if "sessions" in case.speech.capabilities:
        return None
    found = "no word of sessions" if case.speech.settings is None else "only experimental.sessions"
    return f"{found} in the capabilities"


def create(case: Case) -> str | None:
    """Two sessions come into being."""
    return case.create("A") or case.create("B")


def unique(case: Case) -> str | None:
    """They are two."""
    return None if case.session("A")["sessionId"] != case.session("B")["sessionId"] else "one id twice"


def hint(case: Case) -> str | None:
    """The hint can be read."""
    expires = case.session("A").get("expiresAt")
    if expires is None:
        raise Skipped("the server gives none")
    try:
        datetime.fromisoformat(str(expires).replace("Z", "+00:00"))
    except ValueError:
        return "an expiresAt that is no ISO 8601 time"
    return None


def create_within(case: Case) -> str | None:
    """A session is not created within another one."""
    answer = case.speech.ask("sessions/create", session=sent(case.session("A")))
    if answer.result is not None:
        case.hold("within", answer)
    return _unless(answer.code == INVALID_PARAMS, answer)


# --- used ----------------------------------------------------------------------------------------


def use(case: Case) -> str | None:
    """A result names its request's session, and no other."""
    session = case.session("A")
    answer = case.use(sent(session))
    if answer.result is None:
        return f"{answer}"
    echoed = _echo(answer).get("sessionId")
    if echoed is None:
        return "no session in result._meta"
    case.held["A"] = {**session, **sent(_echo(answer)), "sessionId": session["sessionId"]}
    return None if echoed == session["sessionId"] else "another sessionId in result._meta"


def state(case: Case) -> str | None:
    """A state that was given out is taken back."""
    session = case.session("A")
    if "state" not in session:
        raise Skipped("the server keeps no state with the client")
    answer = case.use(sent(session))
    return _unless(answer.result is not None, answer)


def without(case: Case) -> str | None:
    """A request in no session is answered in none."""
    return "a session in result._meta" if _echo(case.use(None)) else None


def parallel(case: Case) -> str | None:
    """Requests at the same time do not get each other's session."""
    sessions = [sent(case.session(name)) for name in "AB"] * (PARALLEL // 2)
    with ThreadPoolExecutor(PARALLEL) as pool:
        answers = list(pool.map(case.use, sessions))
    wrong = sum(
        _echo(answer).get("sessionId") != one["sessionId"] for answer, one in zip(answers, sessions, strict=True)
    )
    return None if wrong == 0 else f"{wrong} of {PARALLEL} answers without their own session"


def malformed(case: Case) -> str | None:
    """What is no session is no session id either."""
    case.session("A")
    answer = case.use({"sessionId": 7})
    return _unless(answer.code == INVALID_PARAMS, answer)


# --- refused -------------------------------------------------------------------------------------


def unknown(case: Case) -> str | None:
    """An id that was never given out names nothing."""
    case.session("A")
    session_id = secrets.token_urlsafe(24)
    return _not_found(case.use({"sessionId": session_id}), session_id)


def _forged(session: Session) -> str:
    """The id with one character changed, well before the end, where encodings may have bits that do not count."""
    session_id: str = session["sessionId"]
    place = max(0, len(session_id) - 6)
    other = "A" if session_id[place] != "A" else "B"
    return f"{session_id[:place]}{other}{session_id[place + 1 :]}"


def forged(case: Case) -> str | None:
    """An id with one character changed names nothing."""
    session_id = _forged(case.session("A"))
    return _not_found(case.use({"sessionId": session_id}), session_id)


def alike(case: Case) -> str | None:
    """Nobody learns whether an id is nearly right."""
    ids = (secrets.token_urlsafe(24), _forged(case.session("A")))
    one, other = (case.use({"sessionId": session_id}) for session_id in ids)
    texts = [(answer.error or {}).get("message") for answer in (one, other)]
    same = (one.status, one.code, texts[0]) == (other.status, other.code, texts[1])
    return None if same else f"{one} for an unknown one; {other} for a forged one"


def oversized(case: Case) -> str | None:
    """An id that is far too long is refused, and the server goes on."""
    session = case.session("A")
    answer = case.use({"sessionId": "A" * OVERSIZED})
    if not answer.refuses:
        return f"{answer}"
    after = case.use(sent(session))
    return None if after.result is not None else f"refused, and then {after}"


def wrong_header(case: Case) -> str | None:
    """A header that names another session than the body is refused."""
    header = {"Mcp-Session-Id": case.session("B")["sessionId"]}
    answer = case.use(sent(case.session("A")), headers=header)
    return _unless(answer.refuses, answer)


def mirrored(case: Case) -> str | None:
    """A header that repeats what the body says is none the worse for it."""
    if not case.speech.modern:
        raise Skipped("in the legacy era the header names the transport's session")
    session = case.session("A")
    answer = case.use(sent(session), headers={"Mcp-Session-Id": session["sessionId"]})
    return _unless(answer.result is not None, answer)


def envelope(case: Case) -> str | None:
    """A request about sessions is held to the envelope."""
    return _strange(case, envelope=False)


def wrong_method(case: Case) -> str | None:
    """And to the headers."""
    return _strange(case, headers={"Mcp-Method": "ping"})


def _strange(case: Case, **how: Any) -> str | None:
    if not case.speech.modern:
        raise Skipped("the legacy era has none")
    answer = case.speech.ask("sessions/create", **how)
    if answer.result is not None:
        case.hold("strange", answer)
    return _unless(answer.refuses, answer)


# --- ended ---------------------------------------------------------------------------------------


def delete_nothing(case: Case) -> str | None:
    """Only what is named can be deleted."""
    answer = case.speech.ask("sessions/delete")
    return _unless(answer.code == INVALID_PARAMS, answer)


def delete(case: Case) -> str | None:
    """A session is deleted, and the answer says nothing else."""
    session = case.session("B")
    answer = case.speech.ask("sessions/delete", session=sent(session))
    case.held["gone"] = case.held.pop("B")
    return _unless(answer.result in ({}, {"resultType": "complete"}), answer)


def replay(case: Case) -> str | None:
    """A deleted session is none."""
    session = case.session("gone")
    return _not_found(case.use(sent(session)), session["sessionId"])


def delete_again(case: Case) -> str | None:
    """It cannot be deleted twice."""
    session = case.held.pop("gone", None)
    if session is None:
        raise Skipped("no session was deleted")
    return _not_found(case.speech.ask("sessions/delete", session=sent(session)), session["sessionId"])


def survivor(case: Case) -> str | None:
    """And no other one with it."""
    answer = case.use(sent(case.session("A")))
    return _unless(answer.result is not None, answer)


# --- beyond the draft ----------------------------------------------------------------------------


def _needs(case: Case, extension: str) -> None:
    if not (case.speech.settings or {}).get(extension):
        raise Skipped("not offered")


def fork(case: Case) -> str | None:
    """A fork is a session of its own."""
    _needs(case, "fork")
    parent = case.session("A")
    answer = case.speech.ask("sessions/fork", {"mode": "fresh"}, session=sent(parent))
    if (failed := case.hold("fork", answer)) is not None:
        return failed
    if case.held["fork"]["sessionId"] == parent["sessionId"]:
        return "the parent's own id"
    used = case.use(sent(case.held["fork"]))
    return _unless(used.result is not None, used)


def descendants(case: Case) -> str | None:
    """The end of a root is the end of its forks."""
    _needs(case, "descendants")
    root, below = sent(case.session("A")), case.session("fork")
    ended = case.speech.ask("sessions/delete", {"descendants": True}, session=root)
    if ended.result is None:
        return f"{ended}"
    del case.held["A"], case.held["fork"]
    return _not_found(case.use(sent(below)), below["sessionId"])


def listed(case: Case) -> str | None:
    """A list holds no id."""
    _needs(case, "list")
    session = case.session("A")
    answer = case.speech.ask("sessions/list")
    if answer.code == PRINCIPAL_REQUIRED:
        raise Skipped("for callers that are authenticated")
    if not isinstance((answer.result or {}).get("sessions"), list):
        return f"{answer}"
    return None if session["sessionId"] not in str(answer.message) else "a sessionId in the list"


@dataclass(frozen=True)
class Rule:
    """One thing that has to hold.

    Args:
        says: What holds, in a sentence.
        clause: Where that is asked for.
        act: What is done to see it.
    """

    says: str
    clause: str
    act: Act

    @property
    def name(self) -> str:
        """What reports call it."""
        return self.act.__name__.replace("_", "-")


RULES: Final = (
    Rule("the capabilities say that there are sessions", "draft: Capabilities", advertised),
    Rule("a session is created, its id visible ASCII", "draft: Creating Sessions, Data Types", create),
    Rule("no two sessions have one id", "draft: Data Types", unique),
    Rule("expiresAt is an ISO 8601 time", "draft: Schema", hint),
    Rule("creating within a session is refused, -32602", "draft: Creating Sessions", create_within),
    Rule("a result names the session of its request", "draft: Using Sessions 2-4", use),
    Rule("a state that was given out is taken back", "draft: Creating Sessions", state),
    Rule("a request in no session is answered in none", "draft: Using Sessions 1", without),
    Rule("parallel requests get their own session", "draft: Using Sessions 1, 3", parallel),
    Rule("a sessionId that is no text is refused, -32602", "draft: Schema", malformed),
    Rule("an unknown session is not found, -32043", "draft: Schema", unknown),
    Rule("a forged session is not found, -32043", "draft: Schema, Data Types", forged),
    Rule("unknown and forged look alike", "draft: Data Types (hijacking)", alike),
    Rule("an id that is far too long is refused", "draft: Data Types (hijacking)", oversized),
    Rule("a header that contradicts the body is refused", "SEP-2243; MCP 2026-07-28: -32020", wrong_header),
    Rule("a header that repeats the body passes", "SEP-2243", mirrored),
    Rule("an envelope that is not whole is refused", "MCP 2026-07-28: -32602", envelope),
    Rule("an Mcp-Method that is not the method is refused", "MCP 2026-07-28: -32020", wrong_method),
    Rule("deleting nothing is refused, -32602", "draft: Deleting Sessions", delete_nothing),
    Rule("a session is deleted, the result empty", "draft: Deleting Sessions", delete),
    Rule("a deleted session is not found, -32043", "draft: Schema", replay),
    Rule("nor can it be deleted again", "draft: Schema", delete_again),
    Rule("the other session lives", "draft: Deleting Sessions", survivor),
    Rule("a list of sessions holds no id", "extension: list", listed),
    Rule("a fork is a session of its own", "extension: fork", fork),
    Rule("forks end with their root", "extension: descendants", descendants),
)
