"""What the user has told pip, in the words of uv, which reads none of pip's files or variables.

uv installs in seconds what takes pip minutes, but it may only do so where it would install the same from the same
place. So this is a table of the settings that both have, and one of those that change nothing about what is installed.
Any other setting is pip's alone, and then pip does the work. No index, proxy or certificate is named here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

SECTIONS = ("global", "install", ":env:")  # the later one wins, as in pip


class OnlyPip(Exception):
    """pip has a setting that uv does not know; the message names it."""


def _as_it_is(value: str) -> str:
    return value


def _words(value: str) -> str:
    return " ".join(value.split())


def _commas(value: str) -> str:
    return ",".join(value.split())


# pip's setting: uv's variables, and how the value is written there.
TRANSLATED: dict[str, tuple[tuple[str, ...], Callable[[str], str]]] = {
    "cert": (("SSL_CERT_FILE",), _as_it_is),
    "client-cert": (("SSL_CLIENT_CERT",), _as_it_is),
    "default-timeout": (("UV_HTTP_TIMEOUT",), _as_it_is),
    "extra-index-url": (("UV_INDEX",), _words),
    "find-links": (("UV_FIND_LINKS",), _commas),
    "index-url": (("UV_DEFAULT_INDEX",), _as_it_is),
    "proxy": (("HTTP_PROXY", "HTTPS_PROXY"), _as_it_is),
    "timeout": (("UV_HTTP_TIMEOUT",), _as_it_is),
    "trusted-host": (("UV_INSECURE_HOST",), _words),
}
WITHOUT_EFFECT = frozenset(
    "break-system-packages cache-dir disable-pip-version-check no-cache-dir no-color no-input no-python-version-warning"
    " no-warn-script-location progress-bar quiet require-virtualenv retries root-user-action verbose".split()
)
# pip takes the best version of all indexes.
ALWAYS = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
LINE = re.compile(r"(?P<section>:env:|[\w-]+)\.(?P<name>[\w-]+)=(?P<value>.*)")


def uv_variables(listing: str) -> dict[str, str]:
    """The environment variables that make uv install as pip would.

    Args:
        listing: What `pip config list` prints: a line for each setting, `section.name='value'`.

    Raises:
        OnlyPip: A setting has no counterpart.
    """
    variables = dict(ALWAYS)
    for name, value in _settings(listing).items():
        if name in TRANSLATED:
            theirs, written = TRANSLATED[name]
            variables.update(dict.fromkeys(theirs, written(value)))
        elif name not in WITHOUT_EFFECT:
            raise OnlyPip(f"pip's setting {name} has no counterpart in uv")
    return variables


def _settings(listing: str) -> dict[str, str]:
    """What pip was told for an installation, by name."""
    found = [match.groupdict() for match in map(LINE.fullmatch, listing.splitlines()) if match is not None]
    return {
        one["name"]: str(ast.literal_eval(one["value"]))
        for section in SECTIONS
        for one in found
        if one["section"] == section
    }
