"""`make demo`: two real servers, the official SDK's own client, and what sessions do for them, as a timeline.

The servers are the examples `counter` and `notebook`, each in a process of its own. Every answer is compared with what
the story says: the first that differs ends the demo with a non-zero exit status. Sessions are called A, B, C and so on;
their ids are credentials, so they are never printed.

    python examples/demo.py [--servers FOLDER]      other versions of counter.py and notebook.py
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
from mcp import Client

from server_process import DidNotStart, ServerProcess, serving
from stage import NOBODY, Differs, Server, together
from timeline import Timeline

HERE = Path(__file__).resolve().parent
NAMES_OF_SESSIONS = ("mcp_sessions", "MCPSessionMiddleware", "current_session", "require_session")
NOT_FOUND = "refused: -32043 Session not found"


async def ready(process: ServerProcess, timeline: Timeline) -> None:
    """Wait until a process serves."""
    await process.ready()
    timeline.event(process.name, f"process {process.pid} serves {process.url}")


async def restart(process: ServerProcess, timeline: Timeline) -> None:
    """End a process and start another in its place; its client stays as it is."""
    timeline.event(process.name, f"process {process.pid} is ended")
    await process.end()
    await process.launch()
    await ready(process, timeline)


# --- the story -----------------------------------------------------------------------------------


def show_source(path: Path, timeline: Timeline) -> None:
    """Show what a server has to say to get sessions, out of its own file."""
    lines = [line for line in path.read_text("utf-8").splitlines() if any(name in line for name in NAMES_OF_SESSIONS)]
    timeline.title(f"The {len(lines)} lines of {path.name} that give it sessions")
    for line in lines:
        timeline.source(line.strip())


async def side_by_side(notebook: Server) -> None:
    """Two sessions on one server do not see each other, and a call without one is refused."""
    notebook.check(NOBODY, "server/discover", json.dumps(notebook.advertised["required"]), '"some"')
    await notebook.create("A")
    await notebook.create("B")
    await notebook.call("A", "append", note="milk", expected='["milk"]')
    await notebook.call("B", "append", note="call Ada", expected='["call Ada"]')
    await notebook.call("A", "append", note="eggs", expected='["milk", "eggs"]')
    await notebook.call("B", "read", expected='["call Ada"]')
    await notebook.call_without("read", expected="[]")  # which is in the session of this client's cookie


async def many_at_once(counter: Server, sessions: str) -> None:
    """Sessions that are used at the same time do not disturb each other."""
    for session in sessions:
        await counter.create(session)
    answers = await together([counter.repeat(session, "count", 5) for session in sessions])
    for session, came_back in zip(sessions, answers, strict=True):
        counter.check(session, "count() five times", came_back, "[1, 2, 3, 4, 5]")


async def twice_in_one(counter: Server, session: str) -> None:
    """Calls of one session at the same moment carry the same state, so that both count from the same number."""
    answers = await together([counter.repeat(session, "count", 1), counter.repeat(session, "count", 1)])
    for came_back in answers:
        counter.check(session, "count() at the same moment", came_back, "[6]")
    await counter.call(session, "count", expected="7")


async def after_restart(notebook: Server) -> None:
    """A new process with the same keys knows the sessions of the old one."""
    await notebook.call("A", "read", expected='["milk", "eggs"]')
    await notebook.call("B", "read", expected='["call Ada"]')


async def delete_one(notebook: Server) -> None:
    """A deleted session is refused, and the other goes on."""
    await notebook.delete("A")
    await notebook.call("A", "read", expected=NOT_FOUND)
    await notebook.call("B", "append", note="call Bob", expected='["call Ada", "call Bob"]')


async def tell(notebook: Server, counter: Server, process: ServerProcess, timeline: Timeline) -> None:
    """The whole story, in which the notebook's process is replaced."""
    timeline.title("Two sessions side by side: neither sees the other's notes")
    await side_by_side(notebook)
    timeline.title("Six sessions at the same time: each counts for itself")
    await many_at_once(counter, "CDEFGH")
    timeline.title("One session twice at the same moment: state is last-write-wins, so one call is not counted")
    await twice_in_one(counter, "C")
    timeline.title("A new server process with the same keys: both sessions live on")
    await restart(process, timeline)
    await after_restart(notebook)
    timeline.title("A deleted session is refused; the other one lives")
    await delete_one(notebook)


async def play(folder: Path, timeline: Timeline) -> None:
    """Start the servers, connect to them and tell the story.

    Raises:
        Differs: An answer is not what the story says.
        DidNotStart: A server did not start.
    """
    difference: Differs | None = None
    async with serving("notebook", folder) as one, serving("counter", folder) as other:
        timeline.title("Two servers, each in a process of its own")
        await ready(one, timeline)
        await ready(other, timeline)
        async with Client(one.url) as first, Client(other.url) as second:
            notebook, counter = Server(one.name, first, timeline), Server(other.name, second, timeline)
            try:
                await tell(notebook, counter, one, timeline)
            except Differs as found:  # raised outside of the clients, whose task groups would wrap it
                difference = found
    if difference:
        raise difference


async def problem_of(folder: Path, timeline: Timeline, limit: float) -> str:
    """What went wrong, or an empty text."""
    try:
        with anyio.fail_after(limit):
            await play(folder, timeline)
    except (Differs, DidNotStart) as problem:
        return str(problem)
    except TimeoutError:
        return f"not at the end of the story after {limit} seconds"
    return ""


def main(arguments: Sequence[str] | None = None, *, limit: float = 50.0) -> int:
    """Run the demo.

    Args:
        arguments: The command line's; None takes the process's own.
        limit: Seconds after which it gives up.

    Returns:
        The exit status: 0 where everything was as the story says, else 1.
    """
    parser = argparse.ArgumentParser(description="Two servers with sessions, and a client that uses them.")
    parser.add_argument("--servers", type=Path, default=HERE, metavar="FOLDER", help="where their files are")
    folder: Path = parser.parse_args(arguments).servers
    timeline = Timeline(sys.stdout)
    show_source(folder / "counter.py", timeline)
    return conclude(timeline, anyio.run(problem_of, folder, timeline, limit))


def conclude(timeline: Timeline, problem: str) -> int:
    """Print the outcome, and return the exit status."""
    timeline.end(problem or "Everything came back as it should.", good=not problem)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
