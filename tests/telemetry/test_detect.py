"""Whether a process traces follows from the provider that it has, and OpenTelemetry is not imported to know it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider

from mcp_sessions import telemetry
from mcp_sessions.telemetry._core import is_traced

OfAnotherName = type("ProxyTracerProvider", (trace.TracerProvider,), {"get_tracer": TracerProvider.get_tracer})
PROVIDERS = {NoOpTracerProvider: False, ProxyTracerProvider: False, TracerProvider: True, OfAnotherName: True}
"""Logfire calls its own by the name of a stand-in, and that one takes spans."""


@pytest.mark.parametrize(("kind", "takes"), PROVIDERS.items(), ids=lambda of: getattr(of, "__name__", str(of)))
def test_the_api_s_stand_ins_keep_nothing(
    kind: type[trace.TracerProvider], takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    assert not is_traced()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", kind())
    assert is_traced() is takes


def test_an_untraced_middleware_imports_no_opentelemetry() -> None:
    source = """
import asyncio, sys
sys.path.insert(0, "tests/support")
from apps import Server, sessions
from clients import Client

async def main():
    client = Client(sessions(Server()))
    await client.tool(session=await client.create())

asyncio.run(main())
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", source], check=True)


def test_a_name_that_telemetry_does_not_have_is_missing() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Basket'"):
        telemetry.Basket  # noqa: B018  # asking is enough
