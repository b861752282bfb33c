"""Containers and functions: the files are valid, and the code for Lambda serves events under a real Mangum."""

import json
import os
import re
import subprocess
from typing import Any

import httpx
import kubernetes_validate
import pytest
import yaml
from clients import INITIALIZE, LEGACY, SECRET
from environments import program
from pages import DOCS, EXAMPLES, blocks, run
from redis_servers import serving as serving_redis

RECIPE = EXAMPLES / "deployment"
SERVER = (RECIPE / "server.py").read_text("utf-8")
COMPOSE = yaml.safe_load((RECIPE / "compose.yaml").read_text("utf-8"))
DEPLOYMENT, SERVICE = yaml.safe_load_all((RECIPE / "kubernetes.yaml").read_text("utf-8"))
POD = DEPLOYMENT["spec"]["template"]
CONTAINER = POD["spec"]["containers"][0]


@pytest.mark.parametrize("manifest", [DEPLOYMENT, SERVICE], ids=lambda manifest: manifest["kind"])
def test_kubernetes_accepts_the_manifest(manifest: dict[str, Any]) -> None:
    """Unknown fields are errors, in the schema of 1.31 and in the newest one known here."""
    for version in ("1.31", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_service_finds_its_pods_and_their_port() -> None:
    labels = POD["metadata"]["labels"]
    assert labels == SERVICE["spec"]["selector"] == DEPLOYMENT["spec"]["selector"]["matchLabels"]
    assert SERVICE["spec"]["ports"][0]["targetPort"] == CONTAINER["ports"][0]["name"]


def test_probes_ask_for_what_the_server_answers() -> None:
    paths = [CONTAINER[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")]
    assert paths == re.findall(r'add_route\("(.+?)"', SERVER)


def test_the_keys_are_where_the_server_looks_for_them() -> None:
    (mounted,) = [one for one in CONTAINER["volumeMounts"] if one["name"] == "keys"]
    given = {one["name"]: one["value"] for one in CONTAINER["env"]}
    assert given["MCP_SESSIONS_KEYS"] == f"file:{mounted['mountPath']}/keys"
    assert "subPath" not in mounted


def test_compose_accepts_the_file() -> None:
    environment = {**os.environ, "MCP_SERVER_HOST": "mcp.example.com", "MCP_SESSIONS_KEYS": SECRET}
    command = [str(program("docker-compose")), "--file", str(RECIPE / "compose.yaml"), "config"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(yaml.safe_load(done.stdout)["services"]) == {"server", "redis"}


@pytest.mark.parametrize("missing", ["MCP_SERVER_HOST", "MCP_SESSIONS_KEYS"])
def test_compose_says_what_is_missing(missing: str) -> None:
    environment = {**os.environ, "MCP_SERVER_HOST": "mcp.example.com", "MCP_SESSIONS_KEYS": SECRET, missing: ""}
    command = [str(program("docker-compose")), "--file", str(RECIPE / "compose.yaml"), "config"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert missing.partition("_S")[0] in done.stderr


def test_the_stop_waits_for_calls() -> None:
    """The orchestrators kill after uvicorn's own limit, not before."""
    (seconds,) = re.findall(r'"--timeout-graceful-shutdown", "(\d+)"', (RECIPE / "Containerfile").read_text("utf-8"))
    limits = (
        COMPOSE["services"]["server"]["stop_grace_period"].rstrip("s"),
        POD["spec"]["terminationGracePeriodSeconds"],
    )
    assert all(int(limit) > int(seconds) for limit in limits)


def event(body: object, headers: dict[str, str]) -> dict[str, Any]:
    """Return a POST as API Gateway gives it to a function (HTTP API, payload 2.0)."""
    http = {"method": "POST", "path": "/mcp", "protocol": "HTTP/1.1", "sourceIp": "192.0.2.1", "userAgent": "test"}
    accept = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    return {
        "version": "2.0",
        "rawPath": "/mcp",
        "rawQueryString": "",
        "headers": {**accept, "host": "abc.execute-api.eu-central-1.amazonaws.com", **headers},
        "requestContext": {"http": http, "stage": "$default"},
        "body": json.dumps(body),
        "isBase64Encoded": False,
    }


def test_lambda_counts_the_calls_of_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event has an application, a lifespan and connections of its own; the session is in Redis."""
    pytest.importorskip("mcp.server.mcpserver")
    (code,) = blocks((DOCS / "containers.md").read_text("utf-8"))
    with serving_redis(appendonly="yes") as redis:
        monkeypatch.setenv("MCP_SESSIONS_KEYS", SECRET)
        monkeypatch.setenv("MCP_SESSIONS_STORE", redis.url)
        handler = run(code)["handler"]
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": INITIALIZE}
        begun = handler(event(hello, {}), None)
        session = httpx.Headers(begun["headers"])["mcp-session-id"]
        counted = []
        for number in (1, 2, 3):
            call = {
                "jsonrpc": "2.0",
                "id": number,
                "method": "tools/call",
                "params": {"name": "count", "arguments": {}},
            }
            answer = handler(event(call, {"mcp-session-id": session, "mcp-protocol-version": LEGACY}), None)
            counted.append(json.loads(answer["body"])["result"]["structuredContent"]["result"])
    assert counted == [1, 2, 3]
