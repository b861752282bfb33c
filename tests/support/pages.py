"""Pages of the documentation, their blocks and tables; and examples."""

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
EXAMPLES: Final = ROOT / "examples"


def blocks(text: str, language: str = "python") -> list[str]:
    """Return the blocks of a language, in their order."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run(code: str, page: str = "page") -> dict[str, Any]:
    """Run blocks as a program, and return its names."""
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, page, "exec", dont_inherit=True), names)  # the page's own code
    return names


def example(name: str) -> Any:
    """Import an example again, and return its app."""
    sys.modules.pop(name, None)
    return import_module(name).app


def rows(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading."""
    table = text.partition(f"# {heading}\n")[2].partition("\n|")[2].partition("\n\n")[0]
    return [re.split(r" *\| *", line.strip("| ")) for line in table.splitlines()[2:]]


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
