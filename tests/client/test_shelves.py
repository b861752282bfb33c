"""What a jar holds and how it changes."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from mcp_sessions import ConfigurationError
from mcp_sessions.client import jar
from mcp_sessions.client.session import Metadata

ONE, OTHER = Metadata("one"), Metadata("other")


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("https://host.example/mcp", "https://host.example:443/mcp"),
        ("HTTPS://user:secret@Host.Example:443/mcp?token=secret#top", "https://host.example:443/mcp"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/"),
        ("http://[::1]/mcp/", "http://[::1]:80/mcp/"),
    ],
)
def test_a_server_is_its_origin_and_path(url: str, server: str) -> None:
    """Written in one way, and without what may be secret in a URL."""
    assert jar.server_of(url) == server


@pytest.mark.parametrize("url", ["", "host/mcp", "ftp://host/mcp", "http:///mcp"])
def test_what_is_no_http_url_is_no_server(url: str) -> None:
    """The message says what to set."""
    with pytest.raises(ConfigurationError, match="set server="):
        jar.server_of(url)


@pytest.mark.parametrize(
    ("transport", "url"),
    [
        (SimpleNamespace(url="http://shown"), "http://shown"),
        (SimpleNamespace(args=("http://given",), kwds={}), "http://given"),
        (SimpleNamespace(args=(), kwds={"timeout": 7, "url": "https://named"}), "https://named"),
        (SimpleNamespace(args=(7, "text"), kwds={}), None),
        (object(), None),
    ],
)
def test_a_transport_shows_its_url(transport: Any, url: str | None) -> None:
    """As an attribute, or by what it was made with."""
    assert jar.url_of(transport) == url


def test_changes_touch_the_session_that_they_are_about() -> None:
    """An update or an end of a session that somebody else has replaced changes nothing."""
    shelf = {"a": ONE, "b": OTHER}
    assert jar.put("a", OTHER)(shelf) == {"a": OTHER, "b": OTHER}
    news = Metadata("one", "state")
    assert jar.update("a", news)(shelf) == {"a": news, "b": OTHER}
    assert jar.update("b", news)(shelf) == shelf == jar.update("c", news)(shelf)
    assert jar.drop("a", "one")(shelf) == {"b": OTHER}
    assert jar.drop("b", "one")(shelf) == shelf == jar.drop("c", "one")(shelf)


def test_entries_past_their_time_are_dropped() -> None:
    """With some leeway, and never those of which the time is not known."""
    now = datetime.now(timezone.utc)
    times = {"live": timedelta(hours=1), "late": -jar.LEEWAY / 2, "gone": -2 * jar.LEEWAY}
    shelf = {name: Metadata(name, None, (now + passed).isoformat()) for name, passed in times.items()}
    assert set(jar.without_expired({**shelf, "unknown": ONE})) == {"live", "late", "unknown"}
