"""`docs/tracing.md` says what is so: its code runs, and does what the page says."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from apps import Server, sessions
from clients import SECRET, Client
from environments import needs
from opentelemetry.sdk.trace import TracerProvider

from mcp_sessions import MCPSessionMiddleware, Session
from mcp_sessions.telemetry import Inspector, SessionMetrics

if TYPE_CHECKING:
    from .conftest import Meter

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tracing.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TRACES, _LOGFIRE, OPTIONS, MOUNTED, SAMPLING, LOGS = BLOCKS
"""The blocks, in their order. That of Logfire is run by `python -m tests.tools.observe`."""


def run(block: str, **names: Any) -> dict[str, Any]:
    exec(compile(block, "tracing.md", "exec", dont_inherit=True), names)  # the page's own code
    return names


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield root
    root.setLevel(level)
    root.handlers[:] = handlers


async def test_sampling() -> None:
    provider = run(SAMPLING)["provider"]
    assert isinstance(provider, TracerProvider)
    tracer = provider.get_tracer("tests")

    async def tool(session: Session | None, arguments: dict[str, Any]) -> list[bool]:
        return [tracer.start_span("a").is_recording() for _ in range(3)]

    client = Client(sessions(Server(tool=tool)))
    held = await client.create()
    (kept,) = {tuple((await client.tool("tool", session=held)).result["content"]) for _ in range(3)}
    assert kept in ((True,) * 3, (False,) * 3)
    assert (await client.tool("tool")).result["content"] == [True] * 3
    provider.shutdown()


async def test_logs(root: logging.Logger, capfd: pytest.CaptureFixture[str]) -> None:
    run(LOGS)
    (shown,) = re.findall(r"```\n(INFO \[ses_.*)\n```", PAGE)
    name, text = re.fullmatch(r"INFO \[ses_[a-z2-7]{24} [0-9a-f]{32}] (\w+): (.*)", shown).groups()  # type: ignore[union-attr]

    async def tool(session: Session | None, arguments: dict[str, Any]) -> str:
        logging.getLogger(name).info(text)
        return session.ref if session is not None else "-"

    client = Client(sessions(Server(tool=tool)))
    held = await client.create()
    refs = [(await client.tool("tool", session=named)).result["content"] for named in (held, None)]
    logging.getLogger(name).info("later", extra={"session": "ses_named"})  # as a background job, which keeps its own
    lines = [line for line in capfd.readouterr().err.splitlines() if name in line]
    found = [re.sub(r" [0-9a-f]{32}]", " ...]", line) for line in lines]
    assert found == [*(f"INFO [{ref} ...] {name}: {text}" for ref in refs), f"INFO [ses_named -] {name}: later"]
    assert refs[0].startswith("ses_")


@needs("mcp>=2")
def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both servers can be built, and the page's function lets one tool's query through, and nothing else."""
    monkeypatch.setenv("MCP_SESSIONS_KEYS", SECRET)
    assert isinstance(run(MOUNTED)["inspector"], Inspector)
    names = run(OPTIONS)
    assert isinstance(names["app"], MCPSessionMiddleware)
    redact = names["redact"]
    assert redact("arguments", "search", {"query": "shoes", "card": "4111"}) == {"query": "shoes"}
    assert redact("result", "search", {"content": []}) is redact("arguments", "pay", {"card": "4111"}) is None


async def test_metrics(meter: Meter) -> None:
    metrics = SessionMetrics(meter.provider)
    client = Client(sessions(Server(), metrics=metrics, tracked=True), http_version="1.1")
    held = await client.create()
    await client.tool(session=held)
    await client.send("prompts/get", {"name": "greeting"}, session=held)
    await client.delete(held)
    await client.tool(session=held)
    metrics.alive("the store", "shop", 1)
    found = {
        name: (metric.unit, {name for point in metric.data.data_points for name in point.attributes or {}})
        for name, metric in meter.found().items()
    }
    rows = re.findall(r"^\| `(mcp[\w.]+)` \| `([^`]+)` \|(.*)\|$", PAGE, re.MULTILINE)
    assert found == {name: (unit, set(re.findall(r"`([\w.]+)`", attributes))) for name, unit, attributes in rows}
