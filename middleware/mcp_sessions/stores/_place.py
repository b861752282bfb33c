"""What a store's location shows of its URL: a host, a port and a database, and nothing that could be a password.

A password that is not percent-encoded moves the cuts of a URL, and drivers take a part of it for something else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

_HOST: Final = re.compile(r"(?!-)[\w-]{1,63}(?<!-)(\.(?!-)[\w-]{1,63}(?<!-))*\.?")
_SCOPE: Final = re.compile(r"%[\w.-]{1,15}$")  # the interface of a link-local address
_FILE: Final = re.compile(r"/?[\w.,+=~ -]+(/[\w.,+=~ -]+)*/?")  # a Unix socket, or the folder of one
_NAME: Final = re.compile(r"[\w.$-]{0,63}")


def check_place(hosts: Sequence[object], ports: Sequence[object], database: object, *, is_file: bool = False) -> None:
    """Refuse to show what is no host, port or database; an empty one stands for the driver's default.

    Raises:
        ValueError: Something else is among them.
    """
    valid_hosts = all(_is_host(str(host)) or (is_file and _FILE.fullmatch(str(host))) for host in hosts)
    if not valid_hosts or not all(_is_port(str(port)) for port in ports) or not _NAME.fullmatch(str(database)):
        raise ValueError


def _is_host(text: str) -> bool:
    try:
        return text == "" or _HOST.fullmatch(text) is not None or ip_address(_SCOPE.sub("", text)) is not None
    except ValueError:
        return False


def _is_port(text: str) -> bool:
    return text == "" or (re.fullmatch("[0-9]{1,5}", text) is not None and 0 < int(text) < 1 << 16)
