"""Logfire's own SDK, set up as `docs/tracing.md` says: what it sends names the session, which it blackens untold.

    python -m observe.logfire_sdk

It is run in an environment that has that SDK, and sends to a receiver in this process in place of the tool.
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
    """One call of a session; its ref."""
    client = Client(sessions(Server()))
    answer = await client.tool("whoami", session=await client.create())
    return str(answer.result["content"])


def main() -> None:
    """Run it, and look at what was sent."""
    with receiving() as received:
        os.environ.update(OTEL_EXPORTER_OTLP_ENDPOINT=received.url, LOGFIRE_SEND_TO_LOGFIRE="false")
        names: dict[str, object] = {}
        exec(compile(CODE, "tracing.md", "exec"), names)
        ref = anyio.run(visit)
        logfire: object = names["logfire"]
        assert logfire.force_flush()  # type: ignore[attr-defined]  # its types are not installed with ours
    said = {span.attributes.get("session.id") for span in received.spans}
    assert said == {ref}, f"its spans say {said} of the session {ref}"


if __name__ == "__main__":
    main()
