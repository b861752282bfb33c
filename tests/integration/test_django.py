"""Plain functions use `session.data.sync` in Django's threads, under each server that runs Django."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from clients import Client
from environments import needs
from programs import answering, free_port

pytestmark = [needs("django"), needs("daphne"), needs("granian")]

SITE = "django_site:app"
SERVERS: dict[str, list[str]] = {
    "uvicorn": ["uvicorn", SITE, "--port"],
    "daphne": ["daphne", SITE, "--port"],
    "granian": ["granian", SITE, "--interface", "asgi", "--port"],
}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", *SERVERS[request.param], str(port)]
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    url = f"http://127.0.0.1:{port}"
    with answering(command, url, tmp_path, PYTHONPATH=os.pathsep.join(paths)):
        yield url


def test_plain_functions_use_session_data_in_django(server: str) -> None:
    client = Client(lambda *_: pytest.fail("is served elsewhere"))

    def result(path: str, method: str, session: Any = None) -> Any:
        headers = [(name.decode(), value.decode()) for name, value in client.headers(method)]
        params = {"name": "any"} if method == "tools/call" else {}
        message = client.message(method, params, session=session)
        return httpx.post(server + path, content=json.dumps(message), headers=headers).json()["result"]

    session = result("/plain", "sessions/create")["session"]
    held = {"sessionId": session["sessionId"]}
    assert result("/plain", "tools/call", held)["content"] == [1, 2]
    third, fourth, refused = result("/async", "tools/call", held)["content"]
    assert (third, fourth) == (3, 4)
    assert "On the event loop, await session.data instead" in refused
    assert result("/plain", "tools/call")["content"] == "nobody"
