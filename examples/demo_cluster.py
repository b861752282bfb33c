"""Sessions on several workers behind a balancer, which are replaced while clients go on calling.

Two servers with two workers each, or as many as you say, and one store, behind nginx, which hands every request to the
next server. Four clients call without a pause while both servers are replaced, one after the other, and the keys are
changed in between. Every request is written down with its times and its answer; at the end the history is checked with
the same rules as in the test suite: no session lost, none that was deleted accepted, no call missed or counted twice.
The first thing that differs makes the exit status non-zero. Session ids are credentials, so they are never printed.

    python examples/demo_cluster.py [--workers NUMBER] [--calls NUMBER] [--servers FOLDER]
"""

# ruff: noqa: E402  # the path comes before the imports that need it
from __future__ import annotations

import argparse
import json
import math
import secrets
import sys
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import anyio
from mcp import Client, MCPError

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
sys.path += [str(TESTS), str(TESTS / "support")]  # the check of histories, and what installs Debian's packages

from history import Kind, Recorder, Rule, violations

from cluster import Nginx, Program, Redis, Replica
from debian import NotInstalled, install
from server_process import DidNotStart
from session_client import KEY, HeldSession, ToolFailed
from timeline import Timeline

CLIENTS: Final = "ABCD"
CALLS: Final = 1000  # at least, unless told otherwise
WORKERS: Final = 2  # of each server
LAST: Final = 100  # calls after the last change, at least
FRESH: Final = 5  # every so many rounds a client makes a session, uses it and deletes it
LOOK: Final = 1.0  # seconds; a worker looks at the key file once in so long
NOT_FOUND: Final = -32043
SHOWN: Final = 20  # of what differs

CHECKS: Final = {
    "calls refused in a session that lived": {Rule.EARLY},
    "calls accepted in a session that was deleted": {Rule.REVIVED, Rule.WAVERED},
    "calls missed, or counted twice": {Rule.LOST, Rule.REPEATED, Rule.INVENTED},
}


class Load:
    """Clients that go on calling, and the history of what they did.

    Args:
        least: How many calls are enough.

    Attributes:
        calls: How many requests were sent.
        failures: What came of those that were neither carried out nor refused for their session.
    """

    def __init__(self, least: int = CALLS) -> None:
        self.recorder = Recorder()
        self._least = least
        self.calls = 0
        self.failures: list[str] = []
        self._enough = math.inf
        self._stop = anyio.Event()

    async def stop(self) -> None:
        """Let every client finish its round, once there are calls enough, or something failed."""
        self._enough = max(self._least, self.calls + LAST)
        await self._stop.wait()

    async def attempt(self, what: str, action: Awaitable[object]) -> None:
        """Do something; what comes of it is noted if it fails, so that the rest of the story goes on."""
        try:
            await action
        except (MCPError, ToolFailed, DidNotStart) as problem:
            self.failures.append(f"{what}: {problem}")
            self._stop.set()

    async def client(self, name: str, url: str, shared: dict[str, Any]) -> None:
        """One client, for as long as there is something to call for."""
        async with Client(url) as client:
            await self.attempt(f"client {name}", self._go_on(name, client, HeldSession(client, shared)))

    async def _go_on(self, name: str, client: Client, shared: HeldSession) -> None:
        """Count in a session of its own and in the shared one, and use a fresh session now and then."""
        own = await HeldSession.create(client)
        rounds = 0
        while not self._stop.is_set():
            await self.count(name, own)
            await self.count("shared", shared)
            if rounds % FRESH == 0:
                await self.end(f"{name}{rounds}", await HeldSession.create(client))
            rounds += 1
        await self.end(name, own)

    async def count(self, name: str, session: HeldSession) -> None:
        """One call in a session."""
        await self.attempt(f"count in {name}", self.ask("add", name, session.call("count")))

    async def end(self, name: str, session: HeldSession) -> None:
        """Use a session, delete it, and try it again, once for each server."""
        await self.count(name, session)
        await self.attempt(f"delete {name}", self.ask("delete", name, session.delete()))
        await self.count(name, session)
        await self.count(name, session)

    async def ask(self, kind: Kind, session: str, request: Awaitable[int | None]) -> None:
        """One request, written down."""
        self.calls += 1
        if self.calls >= self._enough:
            self._stop.set()
        with self.recorder.operation(kind, session) as answer:
            try:
                answer.accepted(await request or 0)
            except MCPError as refusal:
                if refusal.code != NOT_FOUND:
                    raise
                answer.refused()


# --- the story -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cluster:
    """Where the story takes place."""

    nginx: Nginx
    replicas: Sequence[Replica]
    keys: Path


class Story:
    """What happens to the cluster while clients go on calling."""

    def __init__(self, cluster: Cluster, timeline: Timeline, *, calls: int) -> None:
        self._cluster = cluster
        self._timeline = timeline
        self._load = Load(calls)

    async def tell(self) -> str:
        """The whole story; what differs from it, or an empty text."""
        self._timeline.title(f"{len(CLIENTS)} clients: each counts in a session of its own and in one that all share")
        async with Client(self._cluster.nginx.url) as client:
            await self._load.attempt("the story", self._under_load(client))
        return self._conclude()

    async def _under_load(self, client: Client) -> None:
        shared = await HeldSession.create(client)
        async with anyio.create_task_group() as clients:
            for name in CLIENTS:
                clients.start_soon(self._load.client, name, self._cluster.nginx.url, carried(shared))
            first, second = self._cluster.replicas
            await self._load.attempt("the first server", self._replace(first))
            await self._load.attempt("the rotation", self._rotate(client))
            await self._load.attempt("the second server", self._replace(second))
            await self._load.stop()
        served = await shared.call("workers")
        self._timeline.title("What came of it")
        self._timeline.event("servers", f"the shared session was served by {len(served)} processes")
        await self._load.end("shared", shared)

    async def _replace(self, replica: Replica) -> None:
        """Put a new process with new workers in the place of a server."""
        timeline, nginx, before = self._timeline, self._cluster.nginx, self._load.calls
        timeline.title(f"The {replica.name} server and both its workers are replaced")
        await nginx.take_out(replica)
        timeline.event("nginx", f"sends nothing more to {replica.name}, and nothing is under way to it")
        await replica.end()
        timeline.event(replica.name, "is ended")
        await replica.launch()
        await replica.ready()
        tell_of(replica, timeline)
        await nginx.take_out(None)
        timeline.event("nginx", f"uses {replica.name} again; meanwhile there were {self._load.calls - before} calls")

    async def _rotate(self, client: Client) -> None:
        """Make a new key the one that signs, in two steps, so that no worker meets a key that it does not know."""
        timeline, keys, before = self._timeline, self._cluster.keys, self._load.calls
        old, new = await anyio.Path(keys).read_text("utf-8"), secrets.token_urlsafe(32)
        timeline.title("The keys are rotated")
        former = await self._key_of_a_new_session(client)
        write(keys, old, new)
        timeline.event("key file", "old, new: every worker learns to know the new key")
        await anyio.sleep(2 * LOOK)
        write(keys, new, old)
        timeline.event("key file", "new, old: the new key signs, the old one still counts")
        await anyio.sleep(2 * LOOK)
        latter = await self._key_of_a_new_session(client)
        self._load.failures += ["a new session is still signed with the old key"] if latter == former else []
        timeline.event("servers", f"sign with the new key; meanwhile there were {self._load.calls - before} calls")

    async def _key_of_a_new_session(self, client: Client) -> str:
        session = await HeldSession.create(client)
        header = carried(session)["sessionId"].partition(".")[0]
        await self._load.end(f"of the rotation {self._load.calls}", session)
        kid: str = json.loads(urlsafe_b64decode(header + "=="))["kid"]
        return kid

    def _conclude(self) -> str:
        """Check the history and say what came of it; what differs, or an empty text."""
        load, tell = self._load, self._timeline.event
        history = load.recorder.operations
        kinds = Counter(f"{each.kind} {each.outcome}" for each in history)
        sessions, deleted = len({each.session for each in history}), kinds["delete accepted"]
        tell("clients", f"{load.calls} calls in {sessions} sessions, of which {deleted} were deleted")
        tell("clients", f"{kinds['add refused']} calls refused, in sessions that were deleted")
        found = violations(history)
        for words, rules in CHECKS.items():
            tell("history", f"{sum(each.rule in rules for each in found)} {words}")
        tell("history", f"{len(load.failures)} calls that failed")
        return "\n".join([*load.failures, *map(str, found)][:SHOWN])


def carried(session: HeldSession) -> dict[str, Any]:
    """What a session sends along, with which another client can use it, too."""
    return cast("dict[str, Any]", dict(session.meta)[KEY])


def write(keys: Path, *contents: str) -> None:
    """Replace the key file in one step, so that nobody reads half of it."""
    fresh = keys.with_suffix(".new")
    fresh.write_text("\n".join(contents), "utf-8")
    fresh.replace(keys)


# --- the cluster ---------------------------------------------------------------------------------


def tell_of(program: Program, timeline: Timeline) -> None:
    """Say that a program is ready."""
    timeline.event(program.name, f"process {program.pid} listens on 127.0.0.1:{program.port}")


@dataclass(frozen=True)
class Asked:
    """What the command line asks for.

    Args:
        servers: The folder in which the server is.
        workers: Of each server.
        calls: At least.
    """

    servers: Path
    workers: int
    calls: int


async def play(asked: Asked, folder: Path, timeline: Timeline) -> str:
    """Start everything and tell the story; what differs from it, or an empty text.

    Raises:
        NotInstalled: A program is missing, and cannot be installed.
        DidNotStart: A program did not start.
    """
    timeline.title(f"A store, two servers with {asked.workers} workers each, and one address for both")
    keys = folder / "keys"
    write(keys, secrets.token_urlsafe(32))
    redis = Redis(install("redis-server"), folder)
    environment = {"MCP_SESSIONS_STORE": redis.url, "MCP_SESSIONS_KEYS": f"file:{keys}"}
    replicas = [Replica(name, folder, asked.servers, asked.workers, **environment) for name in ("first", "second")]
    nginx = Nginx(install("nginx"), folder, replicas)
    async with AsyncExitStack() as stack:
        programs = (redis, *replicas, nginx)
        for program in programs:
            await stack.enter_async_context(program.running())
        for program in programs:
            await program.ready()
            tell_of(program, timeline)
        return await Story(Cluster(nginx, replicas, keys), timeline, calls=asked.calls).tell()


async def problem_of(asked: Asked, timeline: Timeline, limit: float) -> str:
    """What went wrong, or an empty text."""
    try:
        with anyio.fail_after(limit), TemporaryDirectory() as folder:
            return await play(asked, Path(folder), timeline)
    except (NotInstalled, DidNotStart) as problem:
        return str(problem)
    except TimeoutError:
        return f"not at the end of the story after {limit} seconds"


def main(arguments: Sequence[str] | None = None, *, limit: float = 110.0) -> int:
    """Run the demo.

    Args:
        arguments: The command line's; None takes the process's own.
        limit: Seconds after which it gives up.

    Returns:
        The exit status: 0 where everything was as the story says, else 1.
    """
    parser = argparse.ArgumentParser(description="Sessions on a cluster whose servers are replaced under load.")
    parser.add_argument("--servers", type=Path, default=HERE, metavar="FOLDER", help="where cluster_counter.py is")
    parser.add_argument("--workers", type=int, default=WORKERS, metavar="NUMBER", help="of each server (%(default)s)")
    parser.add_argument("--calls", type=int, default=CALLS, metavar="NUMBER", help="at least (%(default)s)")
    asked, timeline = Asked(**vars(parser.parse_args(arguments))), Timeline(sys.stdout)
    problem = anyio.run(problem_of, asked, timeline, limit)
    timeline.end(problem or "No session was lost, and every answer was right.", good=not problem)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
