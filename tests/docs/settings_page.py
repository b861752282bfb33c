"""The table of `docs/settings.md`, written from the code: the forms, the defaults and what the options are.

python tests/settings_page.py [PAGE]
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import generated

from mcp_sessions import MCPSessionMiddleware
from mcp_sessions._server.options import SECONDS, SETTINGS, Form, variable

COMMAND = "python tests/settings_page.py"
PAGE = generated.DOCS / "settings.md"
UNITS = {"d": 86400, "h": 3600, "m": 60}
PARAMETERS = inspect.signature(MCPSessionMiddleware).parameters


def descriptions() -> dict[str, str]:
    """The first sentence of what the middleware's docstring says of each option."""
    text = inspect.getdoc(MCPSessionMiddleware) or ""
    arguments = text.partition("Args:\n")[2].partition("\nRaises:")[0]
    found = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", arguments, re.MULTILINE)
    return {name: _first(re.sub(r"\s+", " ", said)) for name, said in found}


def _first(said: str) -> str:
    """The first sentence, without what may be written, which has a column of its own."""
    sentence = re.split(r"\.(?= |$)", said)[0].removesuffix(", or a `timedelta`")
    return sentence if sentence.startswith("`") else sentence.partition(": ")[0]


def default(option: str, form: Form) -> str:
    """An option's default, as it would be written in the variable."""
    value: Any = PARAMETERS[option].default
    if value is None:
        return "`*`" if option == "path" else ""
    if form is SECONDS:
        unit, size = next(((u, s) for u, s in UNITS.items() if value % s == 0), ("", 1))
        return f"`{value / size:g}{unit}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{','.join(value) if isinstance(value, tuple) else value}`"


def settings_table() -> str:
    """The table."""
    said = descriptions()
    rows: list[tuple[str, ...]] = [
        (f"`{variable(option)}`", form.words, default(option, form), said[option]) for option, form in SETTINGS.items()
    ]
    return generated.table(("variable", "written as", "default", "what it is"), rows)


if __name__ == "__main__":
    generated.replace(Path(sys.argv[1]) if sys.argv[1:] else PAGE, COMMAND, settings_table())
