"""Logfire's own SDK, set up as in `docs/tracing.md`: its spans name the worker, and the session, which it would redact.

    python -m observe.logfire_sdk

It runs in an environment with that SDK, and sends to a receiver in this process in place of the tool.
"""

from __future__ import annotations

import os
import re

import anyio
from apps import Server, sessions
from clients import Client
from otlp import receiving

from .programs import ROOT

PAGE = (ROOT / "docs" / "tracing.md").read_text("utf-8")
(CODE,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "import logfire" in block]


async def visit() -> str:
    """Make one call in a session, and return its ref."""
    client = Client(sessions(Server()))
    answer = await client.tool("whoami", session=await client.create())
    return str(answer.result["content"])


def main() -> None:
    """Run the SDK, and check what it sent."""
    with receiving() as received:
        os.environ.update(re.findall(r"^export (OTEL_SERVICE_NAME)=(.*)$", PAGE, re.MULTILINE))
        os.environ.update(OTEL_EXPORTER_OTLP_ENDPOINT=received.url, LOGFIRE_SEND_TO_LOGFIRE="false")
        names: dict[str, object] = {}
        exec(compile(CODE, "tracing.md", "exec"), names)
        ref = anyio.run(visit)
        logfire: object = names["logfire"]
        assert logfire.force_flush()  # type: ignore[attr-defined]  # its types are not installed with ours
    workers = {(span.resource["service.name"], span.resource["service.instance.id"]) for span in received.spans}
    assert [service for service, worker in workers if worker] == ["shop"], f"its spans are of {workers}"
    named = {span.attributes.get("session.id") for span in received.spans}
    assert named == {ref}, f"its spans say {named} of the session {ref}"


if __name__ == "__main__":
    main()
