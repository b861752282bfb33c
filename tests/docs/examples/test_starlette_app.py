"""The example `starlette_app`: responses that name the session for an access log."""

from __future__ import annotations

from typing import Any

from example_servers import client_of, http_of, running

from session_client import HeldSession


async def test_a_session_remembers_who_was_greeted() -> None:
    """A name is remembered within its session alone."""
    async with running("starlette_app") as app, client_of(app, "/tools/mcp") as client:
        a, b = await HeldSession.create(client), await HeldSession.create(client)
        assert await a.call("greet", name="Ann") == "Hello, Ann."
        assert await a.call("greet", name="Ann") == "Hello again, Ann."
        assert await b.call("greet", name="Ann") == "Hello, Ann."
        assert (await client.call_tool("greet", {"name": "Ann"})).structured_content == {"result": "Hello, Ann."}


async def test_a_response_names_the_session_of_its_request() -> None:
    """Responses name the session by its ref, and those without a session name none."""
    async with running("starlette_app") as app, http_of(app) as http:
        accept = {"accept": "application/json, text/event-stream"}

        async def post(method: str, params: dict[str, Any]) -> Any:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return await http.post("/tools/mcp", json=body, headers=accept)

        created = (await post("sessions/create", {})).json()["result"]["session"]
        meta = {"io.modelcontextprotocol/session": {"sessionId": created["sessionId"]}}
        refs = [(await post("ping", {"_meta": meta})).headers.get("x-session-ref") for _ in range(2)]
        assert refs[0] == refs[1]
        assert str(refs[0]).startswith("ses_")
        assert "x-session-ref" not in (await post("ping", {})).headers
        health = await http.get("/health")
        assert (health.text, health.headers.get("x-session-ref")) == ("well", None)
