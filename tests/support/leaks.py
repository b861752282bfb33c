"""A pytest plugin that fails a run with a credential in a log line, warning, error text or `repr`.

It wraps the few places in which credentials are made, and keeps the secret part of each: a token's signature, a
state's sealed bytes, a key's material. It also keeps every text that could carry one out of the process, and searches
them when all tests have run.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from mcp_sessions import Key, KeyRing, MCPSessionsError
from mcp_sessions._protocol import draft
from mcp_sessions._server import request
from mcp_sessions._server.logs import EventSink
from mcp_sessions._tokens import seal
from mcp_sessions._tokens.jwt import Tokens
from mcp_sessions._tokens.keys import base64url

WINDOW: Final = 16  # characters by which a secret is searched for, before it is compared as a whole


@dataclass
class Recorder:
    """Secrets, and texts that must not hold them."""

    secrets: set[str] = field(default_factory=set)
    texts: dict[str, str] = field(default_factory=dict)  # the text, and where it came from

    def credential(self, token: str) -> None:
        """Add the secret part of a session id or a state token, which follows the last dot."""
        self.secrets.add(token.rsplit(".", 1)[1])

    def key(self, material: str | bytes) -> None:
        """Add a key's material, in the forms in which it could be written."""
        if isinstance(material, str):
            self.secrets.update(line for line in material.splitlines() if "-----" not in line)
        else:
            self.secrets.update((material.hex(), base64url(material), ascii(material)[2:-1]))

    def text(self, source: str, text: str) -> None:
        """Add a text that may leave the process."""
        self.texts.setdefault(text, source)

    def found(self) -> list[str]:
        """Return where a secret stands in a text, without repeating it."""
        secrets = [secret for secret in self.secrets if len(secret) >= WINDOW]
        beginnings: dict[str, list[str]] = {}
        for secret in secrets:
            beginnings.setdefault(secret[:WINDOW], []).append(secret)
        return sorted(
            f"{source}: {text.replace(secret, '[SECRET]')[:300]!r}"
            for text, source in self.texts.items()
            for secret in _within(text, beginnings)
        )


def _within(text: str, beginnings: dict[str, list[str]]) -> Iterator[str]:
    windows = {text[at : at + WINDOW] for at in range(len(text) - WINDOW + 1)}
    for beginning in windows & beginnings.keys():
        yield from (secret for secret in beginnings[beginning] if secret in text)


RECORDER: Final = Recorder()
REPORTS: Final[list[tuple[int, int, list[str]]]] = []  # of each process: secrets, texts, and what was found


# --- listening -----------------------------------------------------------------------------------


def _after(function: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    """Wrap a function so that `note` is called with its result and arguments."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        note(result, *args)
        return result

    return wrapped


def _listeners(recorder: Recorder) -> Iterable[tuple[object, str, Callable[..., None]]]:
    """Yield every place, and what is noted there."""

    def minted(token: str, _: Tokens, ring: KeyRing, claims: object) -> None:
        recorder.credential(token)
        recorder.text("repr of claims", repr(claims))

    def ring_made(_: None, ring: KeyRing, secrets: Iterable[str | bytes]) -> None:
        for material in secrets:
            recorder.key(material)
        for key in ring._keys.values():
            key_made(key)
        recorder.text("repr of a key ring", repr(ring))

    def key_made(key: Key) -> None:
        for derived in (key.signing, key.handle_key, key.principal_key):
            if isinstance(derived, bytes):
                recorder.key(derived)
        recorder.text("repr of a key", repr(key))

    def logged(_: None, message: str, *args: object) -> None:
        recorder.text("log", message % args if args else message)

    logger = logging.getLogger("mcp_sessions")
    yield Tokens, "mint", minted
    yield seal, "seal", lambda token, *_: recorder.credential(token)
    yield KeyRing, "__init__", ring_made
    yield MCPSessionsError, "__init__", lambda _, error, *args: recorder.text("error", f"{error} {error.args!r}")
    yield request, "Session", lambda session, *_: recorder.text("repr of a session", repr(session))
    yield request, "parse", lambda message, *_: recorder.text("repr of a message", repr(message))
    yield draft, "parse_metadata", lambda metadata, *_: recorder.text("repr of what is named", repr(metadata))
    yield EventSink, "__call__", lambda _, facts, fact, *more: recorder.text("repr of a fact", repr(fact))
    for level in ("debug", "info", "warning", "error", "exception", "critical"):
        yield logger, level, logged


class _Handler(logging.Handler):
    """Keeps the records of all loggers."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def emit(self, record: logging.LogRecord) -> None:
        self._recorder.text(f"log of {record.name}", logging.Formatter().format(record))


@contextmanager
def listening(recorder: Recorder) -> Iterator[Recorder]:
    """Note everything within the block."""
    handler, places = _Handler(recorder), list(_listeners(recorder))
    originals = [(place, name, getattr(place, name)) for place, name, _ in places]
    for place, name, note in places:
        setattr(place, name, _after(getattr(place, name), note))
    logging.getLogger().addHandler(handler)
    try:
        yield recorder
    finally:
        logging.getLogger().removeHandler(handler)
        for place, name, original in originals:
            setattr(place, name, original)


# --- the plugin ----------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Listen from before the first test file is imported to the end of the run."""
    stack = ExitStack()
    stack.enter_context(listening(RECORDER))
    config.add_cleanup(stack.close)


def pytest_warning_recorded(warning_message: warnings.WarningMessage) -> None:
    """Keep the text of a warning, which is printed too."""
    RECORDER.text("warning", str(warning_message.message))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run where a secret was found; a worker process reports to its parent."""
    report = (len(RECORDER.secrets), len(RECORDER.texts), RECORDER.found())
    REPORTS.append(report)
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["leaks"] = [report]
    if any(found for _, _, found in REPORTS):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keep the report of a worker process of pytest-xdist; one that crashed has none, and fails the run anyway."""
    REPORTS.extend(getattr(node, "workeroutput", {}).get("leaks", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was searched, and where a secret was found."""
    leaks = [leak for _, _, found in REPORTS for leak in found]
    for leak in leaks:
        terminalreporter.write_line(f"LEAK in {leak}", red=True)
    secrets, texts = sum(secrets for secrets, _, _ in REPORTS), sum(texts for _, texts, _ in REPORTS)
    terminalreporter.write_line(f"{secrets} secrets were looked for in {texts} texts: {len(leaks)} found")
