"""The families of conversations, each with its deployments and eras."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import faults, talks
from .conversation import Conversation
from .options import SETS

Talk = Callable[[Conversation], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """One conversation of a family: `default/modern`, and the wrapped server's arguments."""

    name: str
    server: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """Conversations with the same steps."""

    talk: Talk
    scenarios: tuple[Scenario, ...]


ERAS = ("legacy", "modern")
FIELDS = [name for name in SETS if name.startswith(("create", "initialize", "sessionless", "both", "spans_both"))]
BRIDGES = [name for name in SETS if "bridge" in name]
EVENTS = ["spans", "correlate", "session_lists"]
"""Deployments in which the draft is also spoken to a server that answers with events."""
FORKING = """default own_admission tracked tracked_idle tracked_anonymous sqlite sqlite_tracked no_store_allowed
 fork_only fills_data raises_at_end limited no_extensions short idle eddsa both_tracked spans_enrich
 spans_session""".split()
HEADERS = """default always legacy no_transport short_transport tracked tracked_idle idle principal fills raises
 refuses limited always_own small_token correlate correlate_own sqlite no_store no_store_allowed eddsa spans
 unheard""".split()


def _family(talk: Talk, sets: Iterable[str], eras: Iterable[str] = ERAS, **server: Any) -> Family:
    return Family(talk, tuple(Scenario(f"{name}/{era}", server) for name in sets for era in eras))


def _in_turn(talk: Talk, sets: Iterable[str]) -> Family:
    """Make conversations in both eras with the first deployment, and in alternate eras with the others."""
    first, *others = sets
    turns = [_family(talk, [name], [ERAS[place % 2]]) for place, name in enumerate(others)]
    return Family(talk, (*_family(talk, [first]).scenarios, *(turn.scenarios[0] for turn in turns)))


def _also(family: Family, sets: Iterable[str], eras: Iterable[str] = ERAS, **server: Any) -> Family:
    """Add the same conversations with another server."""
    words = "-".join(str(value) for value in server.values())
    more = (Scenario(f"{name}/{era}/{words}", server) for name in sets for era in eras)
    return Family(family.talk, (*family.scenarios, *more))


FAMILIES: Mapping[str, Family] = {
    "draft": _also(_in_turn(talks.draft, SETS), EVENTS, shape="sse"),
    "forks": _in_turn(talks.forks, FORKING),
    "header": _also(_family(talks.header, HEADERS, ["legacy"]), ["default", "spans"], ["legacy"], shape="sse_ids"),
    "field": _also(_in_turn(talks.field, FIELDS), ["both", "create_required"], shape="sse_pieces"),
    "renewed": _family(talks.renewed, FIELDS, ["legacy"]),
    "bridge": _also(
        _family(talks.bridge, BRIDGES, ["legacy"], stateful=True),
        ["bridge", "both_bridge", "default"],
        ["legacy"],
        shape="sse_ids",
        stateful=True,
    ),
    "streams": _family(talks.streams, ["default", "tracked", "bridge", "spans"]),
    "bodies": _in_turn(faults.bodies, ["default", "small", "both", "bridge", "fills", "every_path"]),
    "refused": _in_turn(faults.refused, ["default", "principal", "idle", "both", "spans", "always_own"]),
    "shapes": _in_turn(faults.shapes, ["default", "both", "small_state", "spans_session"]),
    "handshakes": _family(faults.handshakes, ["default", "initialize", "bridge"], ["legacy"]),
    "places": _in_turn(faults.places, ["default", "every_path", "other_path", "both", "bridge"]),
    "routed": _family(faults.routed, ["default", "tracked", "sqlite"]),
}
