"""Playing the families, and their recordings: one file for each family, one line for each request."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterable
from contextvars import Context
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .conversation import Conversation
from .families import FAMILIES, Talk
from .fixed import held_still

RECORDED = Path(__file__).parent / "recorded"
Line = dict[str, Any]
_TOKEN = re.compile(r"[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{10,}|v\d\.[A-Za-z0-9_.-]{30,}")
_LONGEST = 2000  # characters of a text that is recorded as it is


def replay(family: str) -> list[Line]:
    """Play a family, and return a record of each request, with digests of credentials and long texts."""
    _import_everything()
    talk, scenarios = FAMILIES[family]
    return [line for name, server in scenarios.items() for line in _lines(talk, name, server)]


@cache
def _import_everything() -> None:
    """Trigger lazy imports, which may draw random bytes, before anything is recorded."""
    for name in ("spans_session/legacy", "spans_bridge/modern", "spans_both/legacy", "sqlite_tracked/modern"):
        _lines(FAMILIES["draft"][0], name, {})


def _lines(talk: Talk, name: str, server: dict[str, Any]) -> list[Line]:
    async def play() -> None:
        async with told.served(told.middleware(told.set)):
            await talk(told)

    with TemporaryDirectory() as folder, held_still(traced="spans" in name) as (spans, levels):
        told = Conversation(name, spans, levels, Path(folder), **server)
        Context().run(asyncio.run, play())
        return [plain(line) for line in told.lines]


def plain(value: Any) -> Any:
    """Return a record as JSON: bytes as Latin-1 text, and credentials and long texts as digests."""
    if isinstance(value, dict):
        return {str(name): plain(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return plain(value.decode("latin-1"))
    if not isinstance(value, str):
        return value
    named = _TOKEN.sub(_name, value)
    return named if len(named) <= _LONGEST else f"{named[:100]}... {len(named)} characters <{_digest(named)}>"


def _name(found: re.Match[str]) -> str:
    """Name a credential by its kind and its digest."""
    payload = found[0].split(".")[1]
    kind = re.search(rb'"knd":"([a-z]+)"', urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return f"<{'sealed' if kind is None else kind[1].decode()} {_digest(found[0])}>"


@lru_cache(maxsize=4096)
def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]


# --- files ---------------------------------------------------------------------------------------


def write(family: str, lines: Iterable[Line]) -> None:
    """Record a family: each request by its difference from the most similar earlier one of the same step."""
    steps: dict[str, list[Line]] = {}
    written = []
    for line in lines:
        earlier = steps.setdefault(line["at"].split(" #")[1], [])
        short = [{"at": line["at"], "as": was["at"].split(" #")[0], **_differing(was, line)} for was in earlier]
        written.append(min(map(_text, short or [_without_empty(line)]), key=len))
        earlier.append(line)
    (RECORDED / f"{family}.jsonl").write_text("\n".join([*written, ""]), "utf-8", newline="\n")


def _text(line: Line) -> str:
    return json.dumps(line, separators=(",", ":"))


def _differing(was: Line, line: Line) -> Line:
    return {name: value for name, value in line.items() if value != was[name] and name != "at"}


def read(family: str) -> list[Line]:
    """Return the recording of a family, each line in full without empty members."""
    full: dict[str, Line] = {}
    for line in map(json.loads, (RECORDED / f"{family}.jsonl").read_text("utf-8").splitlines()):
        step = line["at"].split(" #")[1]
        full[line["at"]] = {**full.get(f"{line.pop('as', '')} #{step}", {}), **line}
    return [_without_empty(line) for line in full.values()]


def _without_empty(line: Line) -> Line:
    return {name: value for name, value in line.items() if value}


def compare(family: str, played: list[Line]) -> str | None:
    """Describe the first request of a family that differs from its recording, or return None."""
    recorded = read(family)
    now = [*map(_without_empty, played)]
    for was, is_now in zip(recorded, now, strict=False):
        if was != is_now:
            names = sorted(name for name in was.keys() | is_now.keys() if was.get(name) != is_now.get(name))
            parts = [f"  {name}\n    expected {was.get(name)}\n    got      {is_now.get(name)}" for name in names]
            return "\n".join([f"{family}: {was['at']}", *parts])
    return None if len(recorded) == len(now) else f"{family}: {len(recorded)} requests recorded, {len(now)} played"


def count(played: Iterable[list[Line]]) -> str:
    """Describe how much was played."""
    lines = [line for family in played for line in family]
    scenarios = {line["at"].split(" #")[0] for line in lines}
    return f"{len(lines)} requests in {len(scenarios)} conversations"
