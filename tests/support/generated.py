"""Pages of the documentation with parts that a program writes: each part stands between two comments.

The comments name the command that writes the part. What stands around it is a person's and is not touched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"


def replace(page: Path, command: str, text: str) -> None:
    """Put a text where the page keeps what a command writes.

    Args:
        page: The page.
        command: The command that its comments name.
        text: What stands between them from now on.
    """
    before, begin, rest = page.read_text("utf-8").partition(f"<!-- begin: written by `{command}` -->")
    _, end, after = rest.partition("<!-- end -->")
    assert begin, page
    assert end, page
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}", "utf-8")


def part(page: Path, command: str) -> str:
    """What a command has written into a page."""
    _, _, rest = page.read_text("utf-8").partition(f"<!-- begin: written by `{command}` -->")
    return rest.partition("<!-- end -->")[0].strip()


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
