"""Pages of the documentation with generated parts, each between two comments that name the command that writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"


def replace(page: Path, command: str, text: str) -> None:
    """Replace the part of the page that a command writes."""
    before, begin, rest = page.read_text("utf-8").partition(f"<!-- begin: written by `{command}` -->")
    _, end, after = rest.partition("<!-- end -->")
    assert begin, page
    assert end, page
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}", "utf-8")


def part(page: Path, command: str) -> str:
    """Return the part of the page that a command writes."""
    _, _, rest = page.read_text("utf-8").partition(f"<!-- begin: written by `{command}` -->")
    return rest.partition("<!-- end -->")[0].strip()


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
