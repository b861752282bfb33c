"""The diagrams of the documentation, as SVG that is legible on a phone, in light and in dark.

python tests/support/diagrams.py [FOLDER]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from textwrap import wrap

import generated
import lifecycle

FOLDER = generated.DOCS / "images"
WIDTH = 480
STEP = 34  # between two messages of a sequence
STYLE = """<style>
.page { fill: #ffffff } .box { fill: #f1f5f9; stroke: #64748b } .ours { fill: #dbeafe; stroke: #2563eb }
text { fill: #1e293b } .beside { stroke: #ffffff } path { stroke: #64748b; fill: none }
marker path { fill: #64748b; stroke: none } .beside { stroke-width: 4px; paint-order: stroke }
@media (prefers-color-scheme: dark) {
  .page { fill: #15181d } .box { fill: #2a3038; stroke: #94a3b8 } .ours { fill: #1e3a5f; stroke: #60a5fa }
  text { fill: #e2e8f0 } .beside { stroke: #15181d } path { stroke: #94a3b8 } marker path { fill: #94a3b8 }
}
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0 8 4 0 8z"/></marker></defs>"""
Message = tuple[int, int, str]


def svg(title: str, height: int, parts: Sequence[str]) -> str:
    """Return a whole drawing; it brings its own ground, since a page may be light or dark."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    head += ' role="img" font-family="system-ui, sans-serif" font-size="14">'
    ground = f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>'
    return "\n".join((head, f"<title>{escape(title)}</title>", STYLE, ground, *parts, "</svg>\n"))


def text(x: float, y: float, words: str, anchor: str = "middle", *, size: int = 13, kind: str = "beside") -> str:
    place = f'class="{kind}" x="{x:g}" y="{y:g}"'
    return f'<text {place} font-size="{size}" text-anchor="{anchor}">{escape(words)}</text>'


def arrow(*points: tuple[float, float], head: bool = True) -> str:
    line = " ".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path d="M{line}"{" marker-end=" + chr(34) + "url(#head)" + chr(34) if head else ""}/>'


def box(x: float, y: float, width: float, lines: Sequence[str], kind: str = "box") -> str:
    """Return a box with centred lines of text, of which the first one names it."""
    height = 14 + 18 * len(lines)
    rows = [
        text(x + width / 2, y + 22 + 18 * row, words, size=14 - row, kind="inside") for row, words in enumerate(lines)
    ]
    rectangle = f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height}" rx="6"/>'
    return "\n".join((rectangle, *rows))


def sequence(title: str, lanes: Sequence[str], ours: Sequence[int], messages: Sequence[Message]) -> str:
    """Return who sends what to whom, in order, between lanes that are numbered from the left."""
    pitch = WIDTH / len(lanes)
    centres = [pitch * (lane + 0.5) for lane in range(len(lanes))]
    height = 78 + STEP * len(messages)
    parts = [arrow((x, 46), (x, height - 12), head=False) for x in centres]
    for lane, (x, name) in enumerate(zip(centres, lanes, strict=True)):
        parts.append(box(x - pitch / 2 + 8, 12, pitch - 16, [name], "ours" if lane in ours else "box"))
    for row, (sender, receiver, words) in enumerate(messages, 1):
        y, (begin, end) = 56 + STEP * row, (centres[sender], centres[receiver])
        parts += [arrow((begin, y), (end, y)), text((begin + end) / 2, y - 6, words)]
    return svg(title, height, parts)


def life() -> str:
    """Return the life of a session: one box a state, with what leads to it."""
    arrows, over, places = lifecycle.arrows(), lifecycle.names(), (80, 240, 400)
    begun, stays = arrows["[*]", lifecycle.LIVE], arrows[lifecycle.LIVE, lifecycle.LIVE]
    parts = [box(170, 54, 140, [lifecycle.LIVE], "ours"), arrow((240, 30), (240, 52)), text(240, 24, ", ".join(begun))]
    parts.append(arrow((312, 64), (334, 64), (334, 78), (314, 78)))
    parts += [text(342, 42 + 16 * row, cause, "start") for row, cause in enumerate(stays)]
    for x, (name, answer) in zip(places, over.items(), strict=True):
        causes = [line for cause in arrows[lifecycle.LIVE, name] for line in wrap(cause, 20)]
        parts.append(arrow((240, 88), (240, 146), (x, 146), (x, 274)))
        parts += [text(x, 172 + 17 * row, cause) for row, cause in enumerate(causes)]
        parts.append(box(x - 70, 276, 140, [name, *answer.split(", ")]))
    return svg("The life of a session", 356, parts)


def deployment() -> str:
    """Return four workers on two machines, with what they share."""
    parts = [box(180, 12, 120, ["clients"]), box(120, 70, 240, ["load balancer, no sticky routing"])]
    parts += [arrow((240, 44), (240, 68))]
    for number, x in enumerate((20, 250), 1):
        parts.append(box(x, 138, 210, [f"machine {number}", "", ""]))
        parts.append(arrow((240, 102), (240, 120), (x + 105, 120), (x + 105, 136)))
        parts += [box(x + 8 + 100 * worker, 168, 94, ["worker"], "ours") for worker in range(2)]
        parts.append(arrow((x + 105, 206), (x + 105, 232)))
    parts += [box(20, 234, 210, ["keys", "a secret, the same everywhere"])]
    parts += [box(250, 234, 210, ["store", "ended sessions, state, data"])]
    parts += [arrow((125, 220), (355, 220), head=False)]
    return svg("Two machines share keys and a store", 300, parts)


CLIENT, OURS, SERVER = 0, 1, 2
DIAGRAMS = {
    "overview": sequence(
        "Two workers answer one client, and find its session in the shared store",
        ["client", "worker 1", "worker 2", "store"],
        [1, 2],
        [
            (0, 1, "add bread"),
            (1, 3, "cart of ses_7f: bread"),
            (1, 0, "bread"),
            (0, 2, "add milk"),
            (2, 3, "cart of ses_7f?"),
            (3, 2, "bread"),
            (2, 0, "bread, milk"),
        ],
    ),
    "draft": sequence(
        "A client creates, uses and deletes a session",
        ["client", "mcp-sessions", "MCP server"],
        [OURS],
        [
            (CLIENT, OURS, "sessions/create"),
            (OURS, CLIENT, "sessionId, expiresAt"),
            (CLIENT, OURS, "tools/call, sessionId"),
            (OURS, SERVER, "tools/call"),
            (SERVER, OURS, "result"),
            (OURS, CLIENT, "result, sessionId"),
            (CLIENT, OURS, "sessions/delete"),
            (OURS, CLIENT, "{}"),
        ],
    ),
    "bridge": sequence(
        "Client and server each have an id of their own",
        ["legacy client", "mcp-sessions", "stateful server"],
        [OURS],
        [
            (CLIENT, OURS, "initialize"),
            (OURS, SERVER, "initialize"),
            (SERVER, OURS, "its id"),
            (OURS, CLIENT, "our id"),
            (CLIENT, OURS, "tools/call, our id"),
            (OURS, SERVER, "tools/call, its id"),
            (SERVER, OURS, "result"),
            (OURS, CLIENT, "result"),
            (CLIENT, OURS, "DELETE, our id"),
            (OURS, SERVER, "DELETE, its id"),
            (SERVER, OURS, "200"),
            (OURS, CLIENT, "200, then 404"),
        ],
    ),
    "deployment": deployment(),
    "lifecycle": life(),
}


if __name__ == "__main__":
    for name, drawn in DIAGRAMS.items():
        (Path(sys.argv[1]) if sys.argv[1:] else FOLDER).joinpath(f"{name}.svg").write_text(drawn, "utf-8")
