"""Record what clients get, what the wrapped server gets and what the store is asked: dialect x era x JSON or events.

python -m tests.tools.oracle record FILE     # before a change
python -m tests.tools.oracle compare FILE    # after it: exits 1 and prints what differs
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("", "support")]

import anyio
from apps import Server, sessions
from clients import DISCOVER, INITIALIZE, SESSION_KEY, Answer, Client, Clock, call, http, user_of
from failing import Failing
from sep1364 import Speaker
from stateful import Stateful

from mcp_sessions import CreateRefused, TransportSessions
from mcp_sessions.dialects import SEP1364Create, SEP1364Initialize

ANN, BOB = (b"x-user", b"ann"), (b"x-user", b"bob")
TOKEN = re.compile(r"(?<![A-Za-z0-9_.-])eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
NAMES = {
    "token": TOKEN,
    "ref": re.compile(r"ses_[a-z2-7]{24}"),
    "state": re.compile(r"(?<![A-Za-z0-9_.-])v1\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+"),
    "random": re.compile(r"admission-[0-9a-f]{16}|era-[0-9a-f]{16}|request-[0-9a-f]{16}"),
    "cookie": re.compile(r"mcp-session-[a-z2-7]{8}(?:[a-z2-7]{8})?"),
}
LENGTH = re.compile(r"content-length=\d+")
ASKED = "status statuses touch revoke revoke_before register register_at_epoch get list_sessions purge".split()
ASKED += "read write compare_and_swap copy look_up".split()


class Watched(Failing):
    """A store in memory that notes the names of the methods that are called."""

    def __init__(self, asked: list[str], **options: Any) -> None:
        super().__init__(**options)
        self.asked = asked

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ASKED:
            return found

        async def noted(*args: Any, **options: Any) -> Any:
            self.asked.append(name)
            return await found(*args, **options)

        return noted


class Logged(logging.Handler):
    """Notes the lines of the log."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


class Trial:
    """One middleware in front of one server, and what happened there."""

    def __init__(self, *, sse: bool = False, stateful: bool = False, **options: Any) -> None:
        self.rows: list[dict[str, Any]] = []
        self.names: dict[str, str] = {}
        self.asked: list[str] = []
        self.lines: list[str] = []
        self.clock = Clock()
        self.store = Watched(self.asked, clock=self.clock)
        self.server: Any = Stateful(sse=sse) if stateful else Server(sse=sse)
        values = {"store": self.store, "clock": self.clock, "principal": user_of, **options}
        self.app = sessions(self.server, **values)
        self.other = sessions(self.server, **values)
        logging.getLogger("mcp_sessions").addHandler(Logged(self.lines))

    def plain(self, text: str) -> str:
        """Return a text with each random value by the order in which it came."""
        for kind, pattern in NAMES.items():

            def name(match: re.Match[str], kind: str = kind) -> str:
                known = sum(one.startswith(f"<{kind}") for one in self.names.values())
                return self.names.setdefault(match.group(), f"<{kind} {known + 1}>")

            text = pattern.sub(name, text)
        return text

    async def note(self, label: str, asking: Awaitable[Answer]) -> Answer:
        """Note one exchange."""
        for one in (self.asked, self.lines):
            one.clear()
        self.server.seen.clear()
        self.clock.now += 0.01  # so that a list of sessions has an order
        answer, error = None, None
        try:
            answer = await asking
        except Exception as raised:  # noqa: BLE001  # what an application gets is noted, too
            error = type(raised).__name__
        row: dict[str, Any] = {"exchange": label, "store": list(self.asked), "log": [self.plain(x) for x in self.lines]}
        if answer is not None and answer.messages:
            row["status"] = answer.status
            row["headers"] = [self.header(pair) for pair in answer.start["headers"]]
            row["body"] = self.plain(b"".join(m.get("body", b"") for m in answer.messages).decode("utf-8", "replace"))
        row["error"] = error
        row["server"] = [self.reached(seen) for seen in self.server.seen]
        self.rows.append(row)
        return answer or Answer()

    def header(self, pair: tuple[bytes, bytes]) -> str:
        return LENGTH.sub("content-length", self.plain(f"{pair[0].decode().lower()}={pair[1].decode('latin-1')}"))

    def reached(self, seen: Any) -> dict[str, Any]:
        scope = seen.scope
        session = scope.get("mcp_session")
        return {
            "method": scope["method"],
            "headers": [self.header(pair) for pair in scope["headers"]],
            "body": self.plain(seen.body.decode("utf-8", "replace")),
            "session": None if session is None else self.plain(f"{session.kind} {session.ref}"),
            "state": None if scope.get("state", {}).get("mcp_session") is session else "differs",
        }


Use = Callable[..., Awaitable[Answer]]


class Kind:
    """How the clients of one dialect create, use and end a session."""

    options: ClassVar[dict[str, Any]] = {}
    modern = False
    stateful = False

    def __init__(self, trial: Trial, app: Any = None) -> None:
        self.trial = trial
        self.client = Client(trial.app if app is None else app, modern=self.modern)
        self.speaker = Speaker(self.client.app, modern=self.modern)
        self.held: Any = None

    def elsewhere(self) -> Kind:
        """Return the same client at another worker."""
        other = type(self)(self.trial, self.trial.other)
        other.held = self.held
        return other

    async def begin(self, *headers: Any) -> Answer:
        answer = await self.client.send("sessions/create", None, *headers)
        if "result" in answer.json:
            self.held = {name: answer.result["session"][name] for name in ("sessionId",)}
        return answer

    async def use(self, method: str, params: Any = None, *headers: Any, id: object = 1) -> Answer:
        answer = await self.client.send(method, params, *headers, session=self.held, id=id)
        body = b"".join(m.get("body", b"") for m in answer.messages)
        if b'"state"' in body and self.held:
            found = answer.session if "result" in answer.json else None
            if found and "state" in found:
                self.held = {**self.held, "state": found["state"]}
        return answer

    async def end(self, *headers: Any) -> Answer:
        return await self.client.send("sessions/delete", None, *headers, session=self.held)

    def forge(self) -> None:
        self.held = {"sessionId": self.held["sessionId"].rpartition(".")[0] + ".AAAA"}


class ModernDraft(Kind):
    modern = True


class HeaderKind(Kind):
    async def begin(self, *headers: Any) -> Answer:
        answer = await self.client.send("initialize", INITIALIZE, *headers)
        self.held = dict(answer.start["headers"]).get(b"mcp-session-id") if answer.messages else None
        return answer

    def named(self) -> list[Any]:
        return [] if self.held is None else [(b"mcp-session-id", self.held)]

    async def use(self, method: str, params: Any = None, *headers: Any, id: object = 1) -> Answer:
        return await self.client.send(method, params, *self.named(), *headers, id=id)

    async def end(self, *headers: Any) -> Answer:
        return await call(self.client.app, http("DELETE", headers=[*self.named(), *headers]))

    def forge(self) -> None:
        self.held = self.held.rpartition(b".")[0] + b".AAAA"


class Bridged(HeaderKind):
    options: ClassVar = {"transport": TransportSessions(bridge=True)}
    stateful = True


class CookieKind(HeaderKind):
    modern = True

    async def begin(self, *headers: Any) -> Answer:
        answer = await self.client.send(DISCOVER, None, *headers)
        set_cookie = [v for n, v in answer.start["headers"] if n == b"set-cookie"]
        self.held = set_cookie[0].partition(b";")[0] if set_cookie else None
        return answer

    def named(self) -> list[Any]:
        return [] if self.held is None else [(b"cookie", b"other=1; " + self.held)]


class PrincipalKind(Kind):
    options: ClassVar = {"transport": TransportSessions(header=False, cookie=False, per_user=True)}

    async def begin(self, *headers: Any) -> Answer:
        return await self.client.send("initialize", INITIALIZE, *headers)

    async def use(self, method: str, params: Any = None, *headers: Any, id: object = 1) -> Answer:
        return await self.client.send(method, params, *headers, id=id)

    async def end(self, *headers: Any) -> Answer:
        return await self.client.send("tools/call", {"name": "leave", "arguments": {}}, *headers)

    def forge(self) -> None:
        pass


class ModernPrincipal(PrincipalKind):
    modern = True


class FieldKind(Kind):
    options: ClassVar = {"dialects": [SEP1364Create(), SEP1364Initialize()]}

    async def begin(self, *headers: Any) -> Answer:
        answer = await self.speaker.say("sessions/create", {"capabilities": {"roots": {}}}, *headers)
        self.held = answer.json.get("sessionId")
        return answer

    async def use(self, method: str, params: Any = None, *headers: Any, id: object = 1) -> Answer:
        fields = {} if self.held is None else {"sessionId": self.held}
        return await self.speaker.say(method, params, *headers, id=id, **fields)

    async def end(self, *headers: Any) -> Answer:
        return await self.speaker.say("sessions/delete", {"sessionId": self.held}, *headers)

    def forge(self) -> None:
        self.held = self.held.rpartition(".")[0] + ".AAAA"


class InitializeKind(FieldKind):
    async def begin(self, *headers: Any) -> Answer:
        answer = await self.speaker.initialize(*headers)
        self.held = answer.json.get("sessionId")
        return answer

    async def end(self, *headers: Any) -> Answer:
        return await self.speaker.say("terminate", {"sessionId": self.held}, *headers)


class StatefulField(InitializeKind):
    stateful = True

    async def use(self, method: str, params: Any = None, *headers: Any, id: object = 1) -> Answer:
        return await self.speaker.say(
            method, params, (b"mcp-session-id", b"servers-1"), *headers, id=id, mirrored=False, sessionId=self.held
        )


KINDS: list[type[Kind]] = [Kind, ModernDraft, HeaderKind, Bridged, CookieKind, PrincipalKind, ModernPrincipal]
KINDS += [FieldKind, InitializeKind, StatefulField]


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


async def usual(trial: Trial, kind: type[Kind]) -> None:
    """A session's life, and what is refused in it."""
    one = kind(trial)
    await trial.note("begin", one.begin(ANN))
    await trial.note("ping", one.use("ping", None, ANN))
    await trial.note("initialized", one.use("notifications/initialized", None, ANN, id=None))
    await trial.note("call", one.use("tools/call", tool("whoami"), ANN))
    await trial.note("state", one.use("tools/call", tool("remember", a=1), ANN))
    await trial.note("state again", one.use("tools/call", tool("remember", b=2), ANN))
    await trial.note("elsewhere", one.elsewhere().use("tools/call", tool("remember", c=3), ANN))
    await trial.note("error", one.use("tools/missing", None, ANN))
    await trial.note("list", one.use("tools/list", None, ANN))
    await trial.note("discover", one.use(DISCOVER, None, ANN))
    await trial.note("initialize again", one.use("initialize", INITIALIZE, ANN))
    await trial.note("cancel", one.use("notifications/cancelled", {"requestId": 9}, ANN, id=None))
    await trial.note("list sessions", one.use("sessions/list", None, ANN))
    await trial.note("fork", one.use("sessions/fork", None, ANN))
    await trial.note("get", call(trial.app, http("GET", headers=[ANN])))
    await trial.note("foreign", one.use("tools/call", tool("whoami"), BOB))
    await trial.note("anonymous", one.use("tools/call", tool("whoami")))
    await trial.note("later", later(trial, one))
    await trial.note("left by the handler", one.use("tools/call", tool("leave"), ANN))
    await trial.note("after it left", one.use("tools/call", tool("whoami"), ANN))
    await trial.note("begin anew", one.begin(ANN))
    await trial.note("use anew", one.use("tools/call", tool("count"), ANN))
    await trial.note("end elsewhere", one.elsewhere().end(ANN))
    await trial.note("ended", one.use("tools/call", tool("count"), ANN))
    await trial.note("end again", one.end(ANN))
    await trial.note("begin a third", one.begin(ANN))
    if one.held is not None:
        one.forge()
    await trial.note("forged", one.use("tools/call", tool("whoami"), ANN))
    await trial.note("forged notification", one.use("notifications/x", None, ANN, id=None))
    await trial.note("forged end", one.end(ANN))
    await trial.note("begin a fourth", one.begin(ANN))
    trial.clock.now += 40 * 86_400
    await trial.note("expired", one.use("tools/call", tool("whoami"), ANN))


async def later(trial: Trial, one: Kind) -> Answer:
    trial.clock.now += 30
    return await one.use("tools/call", tool("whoami"), ANN)


async def unavailable(trial: Trial, kind: type[Kind]) -> None:
    """A store that does not answer."""
    one = kind(trial)
    await trial.note("begin", one.begin(ANN))
    await trial.note("call", one.use("tools/call", tool("count"), ANN))
    trial.store.failing = {"status", "statuses", "touch", "look_up", "read"}
    await trial.note("unavailable", one.use("tools/call", tool("whoami"), ANN))
    await trial.note("unavailable list", one.use("tools/list", None, ANN))
    await trial.note("unavailable end", one.end(ANN))
    trial.store.failing = {"register", "register_at_epoch", "write", "compare_and_swap", "revoke"}
    await trial.note("unwritable begin", one.begin(ANN))
    await trial.note("unwritable state", one.use("tools/call", tool("count"), ANN))
    await trial.note("unwritable end", one.end(ANN))


async def odd(trial: Trial, kind: type[Kind]) -> None:
    """What is malformed, contradictory, or several at once."""
    one = kind(trial)
    await trial.note("without", one.use("tools/call", tool("whoami"), ANN))
    await trial.note("begin", one.begin(ANN))
    client, held = one.client, one.held
    message = client.message("tools/call", tool("whoami"), session=held if isinstance(held, dict) else None)
    await trial.note("batch", client.post([message, message], ANN))
    await trial.note("batch without", client.post([client.message("ping"), client.message("ping", id=2)], ANN))
    await trial.note("response", client.post({"jsonrpc": "2.0", "id": 5, "result": {}}, ANN))
    for metadata in (None, 1, {}, {"sessionId": 1}, {"sessionId": "x", "state": 1}, {"sessionId": "x", "more": 1}):
        broken = client.message("tools/call", tool("whoami"))
        broken["params"]["_meta"][SESSION_KEY] = metadata
        await trial.note(f"metadata {metadata}", client.post(broken, ANN))
    token = held["sessionId"] if isinstance(held, dict) else held
    if isinstance(token, (str, bytes)):
        raw = token if isinstance(token, bytes) else token.encode()
        await trial.note("header too", one.use("tools/call", tool("whoami"), ANN, (b"mcp-session-id", raw)))
        await trial.note("header alone", client.send("tools/call", tool("whoami"), ANN, (b"mcp-session-id", raw)))
        twice = [(b"mcp-session-id", raw), (b"mcp-session-id", raw)]
        await trial.note("header twice", client.send("tools/call", tool("whoami"), ANN, *twice))
        text = raw.decode().rpartition("=")[2]
        await trial.note("in meta", client.send("tools/call", tool("whoami"), ANN, session={"sessionId": text}))
        await trial.note("create with it", client.send("sessions/create", None, ANN, session={"sessionId": text}))
    await trial.note("their header", one.use("tools/call", tool("whoami"), ANN, (b"mcp-session-id", b"servers-9")))
    await trial.note("create notified", client.send("sessions/create", None, ANN, id=None))
    await trial.note("delete without", client.send("sessions/delete", None, ANN))
    await trial.note("terminate without", client.send("terminate", None, ANN))
    await trial.note("not json", client.post(b"{", ANN))
    await trial.note("not jsonrpc", client.post({"hello": 1}, ANN))
    await trial.note("delete anything", call(trial.app, http("DELETE", headers=[ANN])))
    await trial.note("get", call(trial.app, http("GET", headers=[ANN, (b"last-event-id", b"7")])))
    await trial.note("elsewhere", call(trial.app, http("POST", path="/other", headers=[ANN]), b"{}"))


def refuse(session: Any, params: Any, scope: Any) -> None:
    raise CreateRefused("not today")


TRIALS: dict[str, tuple[Any, dict[str, Any]]] = {
    "usual": (usual, {}),
    "tracked": (usual, {"tracked": True, "idle_timeout": 3600}),
    "required": (odd, {"require": "always"}),
    "odd": (odd, {}),
    "unavailable": (unavailable, {}),
    "fail open": (unavailable, {"on_store_error": "allow"}),
    "hook refuses": (usual, {"on_create": refuse}),
    "own admission": (usual, {"admission": "own"}),
}


def streams(kind: type[Kind]) -> list[bool]:
    return [False, True]


async def run(story: Any, trial: Trial, kind: type[Kind]) -> None:
    with anyio.fail_after(60):
        await story(trial, kind)


def record() -> dict[str, Any]:
    """Return every exchange of every trial."""
    found = {}
    for kind in KINDS:
        for name, (story, options) in TRIALS.items():
            for sse in streams(kind):
                if name != "usual" and sse:
                    continue
                trial = Trial(sse=sse, stateful=kind.stateful, **{**options, **kind.options})
                try:
                    anyio.run(run, story, trial, kind)
                except Exception as error:  # noqa: BLE001  # a script that cannot go on is noted where it stopped
                    trial.rows.append({"exchange": f"stopped: {type(error).__name__}: {trial.plain(str(error))}"})
                found[f"{kind.__name__} / {name} / {'events' if sse else 'JSON'}"] = trial.rows
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--store", action="store_true", help="compare the questions to the store, too")
    arguments = parser.parse_args()
    now = record()
    if arguments.command == "record":
        arguments.file.write_text(json.dumps(now, indent=1), "utf-8")
        print(sum(map(len, now.values())), "exchanges")
        return 0
    before, differing = json.loads(arguments.file.read_text("utf-8")), 0
    for name in sorted({*before, *now}):
        old, new = before.get(name, []), now.get(name, [])
        for at in range(max(len(old), len(new))):
            one, other = (rows[at] if at < len(rows) else {} for rows in (old, new))
            keys = [key for key in {**one, **other} if arguments.store or key != "store"]
            for key in keys:
                if one.get(key) != other.get(key):
                    differing += 1
                    print(f"{name} / {one.get('exchange')}: {key}\n  - {one.get(key)}\n  + {other.get(key)}")
    print(f"{differing} differences in {sum(map(len, now.values()))} exchanges")
    return differing > 0


if __name__ == "__main__":
    sys.exit(main())
