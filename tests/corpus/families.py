"""The families of conversations, each with its deployments and eras."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from . import faults, talks
from .conversation import Conversation
from .options import SETS

Talk = Callable[[Conversation], Awaitable[None]]
Scenarios = dict[str, dict[str, Any]]
"""Each conversation of a family, as `default/modern`, and the wrapped server's arguments."""

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


def _in(sets: Iterable[str], *eras: str) -> Scenarios:
    return {f"{name}/{era}": {} for name in sets for era in eras or ERAS}


def _in_turn(sets: Iterable[str]) -> Scenarios:
    """Take both eras with the first deployment, and alternate eras with the others."""
    first, *others = sets
    return {**_in([first]), **{f"{name}/{ERAS[place % 2]}": {} for place, name in enumerate(others)}}


def _at(sets: Iterable[str], *eras: str, **server: Any) -> Scenarios:
    """Take another server."""
    words = "-".join(str(value) for value in server.values())
    return {f"{name}/{words}": server for name in _in(sets, *eras)}


FAMILIES: dict[str, tuple[Talk, Scenarios]] = {
    "draft": (talks.draft, {**_in_turn(SETS), **_at(EVENTS, shape="sse")}),
    "forks": (talks.forks, _in_turn(FORKING)),
    "header": (talks.header, {**_in(HEADERS, "legacy"), **_at(["default", "spans"], "legacy", shape="sse_ids")}),
    "field": (talks.field, {**_in_turn(FIELDS), **_at(["both", "create_required"], shape="sse_pieces")}),
    "renewed": (talks.renewed, _in(FIELDS, "legacy")),
    "bridge": (
        talks.bridge,
        {
            **{name: {"stateful": True} for name in _in(BRIDGES, "legacy")},
            **_at(["bridge", "both_bridge", "default"], "legacy", shape="sse_ids", stateful=True),
        },
    ),
    "streams": (talks.streams, _in(["default", "tracked", "bridge", "spans"])),
    "bodies": (faults.bodies, _in_turn(["default", "small", "both", "bridge", "fills", "every_path"])),
    "refused": (faults.refused, _in_turn(["default", "principal", "idle", "both", "spans", "always_own"])),
    "shapes": (faults.shapes, _in_turn(["default", "both", "small_state", "spans_session"])),
    "handshakes": (faults.handshakes, _in(["default", "initialize", "bridge"], "legacy")),
    "places": (faults.places, _in_turn(["default", "every_path", "other_path", "both", "bridge"])),
    "routed": (faults.routed, _in(["default", "tracked", "sqlite"])),
}
