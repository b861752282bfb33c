"""The matrix: servers of every environment, visited by the clients of every environment and by those of JavaScript.

It prints the table of `docs/clients.md`, and ends with an error where a client lacks what the page promises to it. Each
environment hosts and visits in processes of its own, since no two have the same SDK.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pages

from integration import javascript

from .environment import DRAFT, UNCHANGED, Result

ROOT: Final = pages.ROOT
PYTHONS: Final = (ROOT / ".nox/legacy/bin/python", ROOT / ".venv/bin/python")
JAVASCRIPT: Final = {
    "typescript 1": "@modelcontextprotocol/sdk",
    "typescript 2": "@modelcontextprotocol/client",
    "typescript 2 modern": "@modelcontextprotocol/client",
}
NOTHING: Final = "–"


def _command(python: Path, program: str, frameworks: Sequence[str]) -> list[str]:
    paths = [str(ROOT / "tests" / folder) for folder in ("", "support", "tools")]
    code = f"import sys; sys.path[:0] = {paths}; from compatibility.environment import {program}; {program}()"
    return [str(python), "-W", "ignore", "-c", code, *frameworks]


@contextmanager
def hosted(python: Path, frameworks: Sequence[str]) -> Iterator[dict[str, str]]:
    """Host an environment's servers within the block, and yield their URLs."""
    command = _command(python, "host", frameworks)
    pipe, log = subprocess.PIPE, subprocess.DEVNULL  # the frameworks log every request
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        urls: dict[str, str] = json.loads(process.stdout.readline())
        yield urls
        process.stdin.close()  # which ends the process


def visited(python: Path, urls: Mapping[str, str], frameworks: Sequence[str]) -> list[Result]:
    """Return what the clients of an environment can do with the servers."""
    command = _command(python, "visit", frameworks)
    done = subprocess.run(command, input=json.dumps(urls), stdout=subprocess.PIPE, text=True, check=True)
    return [Result(**json.loads(line)) for line in done.stdout.splitlines()]


async def visited_by_javascript(urls: Mapping[str, str], clients: Sequence[str]) -> list[Result]:
    """Return what the TypeScript clients can do, which know nothing of sessions in `_meta`."""
    found = []
    folder = javascript.packages()
    versions = json.loads((folder / "package.json").read_text("utf-8"))["dependencies"]
    with tempfile.TemporaryDirectory() as home:
        for client in clients:
            argument = ', `versionNegotiation: {mode: "auto"}`' if client.endswith("modern") else ""
            name = f"TypeScript {versions[JAVASCRIPT[client]]}{argument}"
            for server, url in urls.items():
                steps: list[Any] = [["call", "whoami"], ["call", "count"], ["call", "count"]]
                [seen] = await javascript.visits(folder, Path(home), [client], url, *steps)
                works = UNCHANGED if seen.results[1:] == ["1", "2"] else ""
                found.append(Result(name, server, works))
    return found


# --- the table -----------------------------------------------------------------------------------


def table(results: Sequence[Result]) -> str:
    """Return the servers, and what works of each client, default settings first, with JSON and SSE answers."""
    marks: dict[str, dict[str, dict[str, str]]] = {}
    for result in results:
        server, mode, form = result.server.split("|")
        works = " ".join(result.works) or NOTHING
        marks.setdefault(result.client, {}).setdefault(server, {})[f"{mode}, {form}"] = works
    servers = list(dict.fromkeys(server for by_server in marks.values() for server in by_server))
    groups: dict[tuple[str, str], list[str]] = {}
    for client in sorted(marks, key=lambda client: "`" in client):
        where: dict[str, list[str]] = {}
        for server, by_form in marks[client].items():
            where.setdefault(_cell(by_form), []).append(server)
        for cell, found in where.items():
            on = "every server" if len(where) == 1 else ", ".join(found)
            groups.setdefault((cell, on), []).append(client)
    rows = [(*group, "; ".join(names)) for group, names in groups.items()]
    return f"Servers: {', '.join(servers)}.\n\n{pages.table(('works', 'on', 'clients'), rows)}"


def _cell(by_form: Mapping[str, str]) -> str:
    if len(set(by_form.values())) == 1:
        return next(iter(by_form.values()))
    return "; ".join(f"{form}: {marks}" for form, marks in by_form.items())


def faults(results: Sequence[Result]) -> list[str]:
    """Describe each client without a session; in the modern era, TypeScript's has none, since Node keeps no cookies."""
    promised = {
        result: UNCHANGED if result.client.startswith("TypeScript") else UNCHANGED + DRAFT
        for result in results
        if "versionNegotiation" not in result.client
    }
    return [
        f"{result.client} on {result.server}: {result.works or NOTHING} of {marks}"
        for result, marks in promised.items()
        if result.works != marks
    ]


# --- the command line ----------------------------------------------------------------------------


def main() -> int:
    """Try every pair, and print the table and the faults; their number is the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.compatibility", description=__doc__)
    parser.add_argument("--python", action="append", type=Path, help="an environment's (default: both of make check)")
    parser.add_argument("--framework", action="append", default=[], help="only this one, such as sdk2")
    parser.add_argument("--server", default="", help="only those whose names hold this, such as stateless|SSE")
    parser.add_argument("--javascript", action="append", choices=JAVASCRIPT, help="only this one")
    options = parser.parse_args()
    pythons = options.python or PYTHONS
    with ExitStack() as stack:
        urls = {}
        for python in pythons:
            up = stack.enter_context(hosted(python, options.framework))
            urls.update({server: url for server, url in up.items() if options.server in server})
        results = [result for python in pythons for result in visited(python, urls, options.framework)]
        results += anyio.run(visited_by_javascript, urls, options.javascript or list(JAVASCRIPT))
    print(table(results), *(found := faults(results)), sep="\n")
    return len(found)
