"""Options from the environment: every one that a variable can hold, and nothing passed over."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from apps import Server
from clients import SECRET, Client
from environments import needs
from redis_servers import PROGRAM
from starlette.applications import Starlette
from starlette.routing import Route

from mcp_sessions import (
    ConfigurationError,
    Limits,
    MCPSessionMiddleware,
    Telemetry,
    Tracking,
    TransportSessions,
    Wire,
    add_sessions,
)
from mcp_sessions._server.options import (
    GROUPS,
    PREFIX,
    SERVICE_LINK,
    SETTINGS,
    VARIABLES,
    from_env,
    variable,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
PARAMETERS = inspect.signature(MCPSessionMiddleware).parameters


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [*VARIABLES, PROGRAM]:  # the last is for other tests
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


HOUR, DAY = 3600, 24 * 3600
READ: dict[str, dict[str, Any]] = {
    "audience": {"https://api.example/mcp": "https://api.example/mcp"},
    "path": {"/api/mcp": "/api/mcp", "*": None},
    "lifetime": {"90": 90, "90s": 90, "15m": 900, "12h": 12 * HOUR, "7d": 7 * DAY, "1.5h": 5400, " 12h ": 12 * HOUR},
    "require": {
        "never": "never",
        "always": "always",
        "tools/call, prompts/get": ("tools/call", "prompts/get"),
        '{"tools/call": ["checkout"]}': {"tools/call": ["checkout"]},
    },
    "tracked": {"true": True, "TRUE": True, "1": True, "false": False, "0": False},
    "keys": {"file:/run/keys": "file:/run/keys", "env:OTHER": "env:OTHER", SECRET: "env:MCP_SESSIONS_KEYS"},
}
GROUPED: dict[str, dict[str, Any]] = {
    "wire_extensions": {
        **{text: Wire(extensions=tuple(text.split(","))) for text in ("fork", "fork,list")},
        "none": Wire(extensions=()),
    },
    "telemetry_correlate": {
        **{text: Telemetry(correlate=text == "true") for text in ("true", "false")},
        "meta:openai/session,header:x-id": Telemetry(correlate=("meta:openai/session", "header:x-id")),
    },
    "limits_batch": {"7": Limits(batch=7)},
    "transport_bridge": {"true": TransportSessions(bridge=True)},
    "transport_lifetime": {"1h": TransportSessions(lifetime=HOUR)},
}
CASES = [
    (f"MCP_SESSIONS_{name.upper()}", name if name in READ else name.partition("_")[0], text, value)
    for name, forms in {**READ, **GROUPED}.items()
    for text, value in forms.items()
]


@pytest.mark.parametrize(("name", "option", "text", "value"), CASES)
def test_a_setting_is_read_in_its_form(
    environ: pytest.MonkeyPatch, name: str, option: str, text: str, value: Any
) -> None:
    """Alone or as a field of an option object; an empty environment leaves the defaults to the middleware."""
    assert from_env() == {}
    environ.setenv(name, text)
    assert from_env() == {option: value}


@pytest.mark.parametrize("setting", ["STORE", "LIMITS_BATCH"])
def test_a_prefix_with_a_letter_too_few_is_not_passed_over(environ: pytest.MonkeyPatch, setting: str) -> None:
    """The store of a deployment would be this process's memory; another program's variables are its own."""
    environ.setenv("MCP_SESSION_OF_ANOTHER_PROGRAM", "1")
    assert from_env() == {}
    environ.setenv(f"MCP_SESSION_{setting}", "7")
    with pytest.raises(ConfigurationError, match=f"did you mean MCP_SESSIONS_{setting}?"):
        from_env()


OFF, SWEPT = {"TRANSPORT": "off", "TRANSPORT_BRIDGE": "true"}, {"TRACKED_SWEEP_INTERVAL": "7"}


@pytest.mark.parametrize(
    ("variables", "given", "read"),
    [
        ({"LIFETIME": "1h", "ADMISSION": "own"}, {"lifetime": 60}, {"lifetime": 60, "admission": "own"}),
        # fields fill in an object that is given in code
        (
            {"LIMITS_BATCH": "7", "LIMITS_NESTING": "7"},
            {"limits": Limits(batch=8)},
            {"limits": Limits(batch=8, nesting=7)},
        ),
        (OFF, {}, {"transport": TransportSessions(header=False, cookie=False, bridge=True)}),
        (OFF, {"transport": "auto"}, {"transport": TransportSessions(bridge=True)}),
        # how often is swept says nothing where sessions are not tracked
        (SWEPT, {}, {}),
        (SWEPT, {"tracked": False}, {"tracked": False}),
        (SWEPT, {"tracked": True}, {"tracked": Tracking(sweep_interval=7)}),
    ],
)
def test_what_is_given_in_code_wins(
    environ: pytest.MonkeyPatch, variables: dict[str, str], given: dict[str, Any], read: dict[str, Any]
) -> None:
    for name, text in variables.items():
        environ.setenv(PREFIX + name, text)
    assert from_env(**given, on_end=print) == {**read, "on_end": print}


WRONG = {
    "MCP_SESSIONS_LIFTIME": ("1h", "MCP_SESSIONS_LIFTIME is not a setting; did you mean MCP_SESSIONS_LIFETIME?"),
    "MCP_SESSIONS_lifetime": ("1h", "MCP_SESSIONS_lifetime is not a setting; did you mean MCP_SESSIONS_LIFETIME?"),
    "MCP_SESSIONS_ZQX": ("1", "MCP_SESSIONS_ZQX is not a setting; these are settings: MCP_SESSIONS_KEYS, "),
    "MCP_SESSIONS_ON_END": ("free", "no variable holds on_end=; give it in code, as in from_env(on_end=...)"),
    "MCP_SESSIONS_TELEMETRY_LISTEN": (
        "f",
        "no variable holds listen=; give it in code, as in from_env(telemetry=Telemetry(",
    ),
    "MCP_SESSIONS_STORE": ("  ", "MCP_SESSIONS_STORE is empty; remove it, or write `memory:`"),
    "MCP_SESSIONS_LIFETIME": ("soon", "MCP_SESSIONS_LIFETIME='soon' must be seconds, or a number with"),
    "MCP_SESSIONS_LIMITS_BATCH": ("many", "MCP_SESSIONS_LIMITS_BATCH='many' must be a whole number"),
    "MCP_SESSIONS_TRACKED": ("perhaps", "MCP_SESSIONS_TRACKED='perhaps' must be `true` or `false`"),
    "MCP_SESSIONS_REQUIRE": ("{tools}", "MCP_SESSIONS_REQUIRE='{tools}' must be `never`, `always`"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_says_what_to_write(environ: pytest.MonkeyPatch, name: str) -> None:
    text, said = WRONG[name]
    environ.setenv(name, text)
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        from_env()


def test_what_kubernetes_says_of_a_service_is_no_setting(environ: pytest.MonkeyPatch) -> None:
    """It says so to every pod beside one that is called as this package is."""
    environ.setenv("MCP_SESSIONS_LIFETIME", "1h")
    for (
        rest
    ) in "SERVICE_HOST SERVICE_PORT_HTTP PORT PORT_80_TCP PORT_80_TCP_PROTO PORT_53_UDP PORT_99_SCTP_ADDR".split():
        environ.setenv(f"MCP_SESSIONS_{rest}", "10.0.0.11")
    assert from_env() == {"lifetime": HOUR}


@pytest.mark.parametrize("rest", ["PORTS", "PORT_80", "SERVICE", "service_host", "A_PORT"])
def test_what_only_looks_like_a_service_is_refused(environ: pytest.MonkeyPatch, rest: str) -> None:
    environ.setenv(f"MCP_SESSIONS_{rest}", "80")
    with pytest.raises(ConfigurationError, match=f"MCP_SESSIONS_{rest} is not a setting"):
        from_env()


def test_no_option_is_called_as_a_service_is() -> None:
    """Or its variable would be passed over."""
    assert not [name for name in VARIABLES if SERVICE_LINK.fullmatch(name.removeprefix(PREFIX))]


async def test_the_middleware_takes_them(environ: pytest.MonkeyPatch) -> None:
    environ.setenv("MCP_SESSIONS_KEYS", SECRET)
    environ.setenv("MCP_SESSIONS_REQUIRE", "tools/call")
    environ.setenv("MCP_SESSIONS_LIFETIME", "12h")
    for app in (MCPSessionMiddleware.from_env(Server(), admission="own"), _added(**from_env(admission="own"))):
        client = Client(app)
        assert (await client.tool()).error["code"] == -31044
        assert (await client.tool(session=await client.create())).status == 200


def _added(**given: Any) -> Any:
    return add_sessions(Starlette(routes=[Route("/mcp", Server())]), path="/mcp", **given)


def test_every_default_can_be_written(environ: pytest.MonkeyPatch) -> None:
    """The page lists every setting, and what it shows as a default is that default, which the middleware takes."""
    first, _, rest = PAGE.read_text("utf-8").partition("### Common settings")[2].partition("### Behavior")
    examples = re.findall(r"^`(MCP_SESSIONS_\w+)=.*`\n: (?:.* Default: `(.+)`\.)?", first, re.MULTILINE)
    others = re.findall(r"^`(MCP_SESSIONS_\w+)(?:=(.+))?`$", rest, re.MULTILINE)
    assert sorted(name for name, _ in examples + others) == sorted(map(variable, SETTINGS))
    for name, default in examples + others:
        if default:
            environ.setenv(name, default)
    read: dict[str, Any] = {**from_env()}
    plain = {name: value for name, value in read.items() if name not in GROUPS}
    assert plain == {name: PARAMETERS[name].default for name in plain}
    assert all(read.get(group, False) in (kind(), False) for group, kind in GROUPS.items())
    assert isinstance(MCPSessionMiddleware(Server(), **read), MCPSessionMiddleware)


# --- the page ------------------------------------------------------------------------------------


@needs("mcp>=2")
@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL), ids="12")
async def test_the_code_of_the_page_runs(environ: pytest.MonkeyPatch, block: str) -> None:
    environ.setenv("MCP_SESSIONS_KEYS", SECRET)
    environ.setenv("MCP_SESSIONS_ADMISSION", "own")
    names: dict[str, Any] = {}
    exec(compile(block, "settings.md", "exec", dont_inherit=True), names)  # the page's own code
    refused = await Client(names["app"], query_string=b"").tool(session={"sessionId": "nobody's"})
    assert refused.error["code"] == -32043


def test_the_settings_that_the_page_shows_are_settings(environ: pytest.MonkeyPatch) -> None:
    shown = dict(re.findall(r"^\$ export (\w+)='?(.*?)'?$", PAGE.read_text("utf-8"), re.MULTILINE))
    for name, text in shown.items():
        environ.setenv(name, text)
    assert from_env() == {
        "keys": "file:/run/secrets/session-keys",
        "store": "redis://cache.internal:6379/0",
        "lifetime": 12 * HOUR,
        "require": {"tools/call": ["checkout"]},
    }
    assert all(name.startswith(PREFIX) for name in shown)
