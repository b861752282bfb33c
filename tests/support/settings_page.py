"""The settings of `docs/settings.md`, generated from the code: forms, defaults and descriptions of the options.

python tests/support/settings_page.py [PAGE]
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import generated

from mcp_sessions import MCPSessionMiddleware
from mcp_sessions._server import options
from mcp_sessions._server.option_types import DURATION, OptionType
from mcp_sessions._server.options import GROUPS, SETTINGS, variable

COMMAND = "python tests/support/settings_page.py"
PAGE = generated.DOCS / "settings.md"
UNITS = {"d": 86400, "h": 3600, "m": 60}
FIRST = {
    "keys": "file:/run/secrets/session-keys",
    "store": "redis://cache.internal:6379/0",
    "lifetime": "12h",
    "idle_timeout": "30m",
    "require": '{"tools/call": ["checkout"]}',
    "tracked": "true",
    "audience": "shop",
    "path": "/api/mcp",
}
"""Common settings, with an example each."""
WORDS = {
    DURATION.help: "",
    "a whole number": "",
    "`true` or `false`": "",
    "text": "",
    "at least 16 characters": " At least 16 characters.",
}
"""How forms are written that the page explains once."""
PARAMETERS = inspect.signature(MCPSessionMiddleware).parameters


def descriptions() -> dict[str, str]:
    """Return the first sentence on each setting, from the middleware's docstring or from below a field."""
    text = inspect.getdoc(MCPSessionMiddleware) or ""
    arguments = text.partition("Args:\n")[2].partition("\nRaises:")[0]
    found = dict(re.findall(r"^    (\w+): (.*(?:\n     .*)*)", arguments, re.MULTILINE))
    for group, kind in GROUPS.items():
        (body,) = (
            node.body
            for node in ast.parse(inspect.getsource(options)).body
            if isinstance(node, ast.ClassDef) and node.name == kind.__name__
        )
        for field, below in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                found[f"{group}.{ast.unparse(field.target)}"] = ast.literal_eval(below.value)
    return {name: _first(re.sub(r"\s+", " ", text)) for name, text in found.items()}


def _first(text: str) -> str:
    """Return the first sentence, without the forms, which have a column of their own."""
    sentence = re.split(r"\.(?= |$)", text)[0].removesuffix(", or a `timedelta`")
    return sentence if sentence.startswith("`") else sentence.partition(": ")[0]


def default(setting: str, form: OptionType) -> str:
    """Return a setting's default, as written in the variable, or nothing."""
    group, _, field = setting.rpartition(".")
    value: Any = getattr(GROUPS[group](), field) if group else PARAMETERS[setting].default
    if value is None:
        return "*" if setting == "path" else ""
    if form.help == DURATION.help:
        unit, size = next(((u, s) for u, s in UNITS.items() if value % s == 0), ("", 1))
        return f"{value / size:g}{unit}"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def entry(setting: str, known: dict[str, str]) -> str:
    """Return a setting as a term with its default or an example, and what it is and how it is written."""
    form, value = SETTINGS[setting], default(setting, SETTINGS[setting])
    written = WORDS.get(form.help, f" Written as {form.help}.")
    if set(re.findall(r"\w+", form.help)) - {"or"} <= set(re.findall(r"\w+", known[setting])):
        written = ""  # the description has the choices
    if setting in FIRST and value:
        written += f" Default: `{value}`."
    shown = FIRST.get(setting, value)
    return f"`{variable(setting)}{shown and f'={shown}'}`\n: {known[setting]}.{written}"


def settings_list() -> str:
    """Return definition lists: common settings, the other options, then each group."""
    known = descriptions()
    plain = [setting for setting in SETTINGS if "." not in setting and setting not in FIRST]
    parts = {"Common settings": [*FIRST], "Behavior": plain}
    for group, kind in GROUPS.items():
        fields = [setting for setting in SETTINGS if setting.startswith(f"{group}.")]
        parts[f"`{group}={kind.__name__}(...)`"] = fields
    return "\n\n".join(
        "\n\n".join((f"### {title}", *(entry(one, known) for one in settings))) for title, settings in parts.items()
    )


if __name__ == "__main__":
    generated.replace(Path(sys.argv[1]) if sys.argv[1:] else PAGE, COMMAND, settings_list())
