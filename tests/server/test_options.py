"""Every option, in code and in the environment: a wrong one fails at construction and says what to write instead."""

import inspect
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from apps import SHORT, Server, sessions
from clients import SECRET, Client
from environments import needs
from pages import DOCS, blocks, rows, run
from redis_servers import PROGRAM
from starlette.applications import Starlette
from starlette.routing import Route

from mcp_sessions import (
    ConfigurationError,
    KeyRing,
    Limits,
    MCPSessionMiddleware,
    Telemetry,
    Tracking,
    TransportSessions,
    Wire,
    add_sessions,
)
from mcp_sessions._server.environment import (
    GROUPS,
    OPTIONS,
    PREFIX,
    SERVICE_LINK,
    SETTINGS,
    VARIABLES,
    from_env,
    variable,
)
from mcp_sessions._server.option_types import CLOCK, FUNCTION, HOOK, types_of
from mcp_sessions.client import with_sessions
from mcp_sessions.dialects import SEP1364Create, SEP1364Initialize
from mcp_sessions.handles import Handles
from mcp_sessions.stores import MemoryStore, PostgresStore, RedisStore, SQLiteStore

HOUR, DAY = 3600, 24 * 3600
PAGE = (DOCS / "settings.md").read_text("utf-8")
PARAMETERS = inspect.signature(MCPSessionMiddleware).parameters


def test_signatures_show_all_options() -> None:
    """Each stands in one place; `add_sessions` finds the path itself."""
    for call in (MCPSessionMiddleware, MCPSessionMiddleware.from_env, add_sessions, from_env):
        shown = {name: one.default for name, one in inspect.signature(call).parameters.items() if name != "app"}
        assert shown == {name: PARAMETERS[name].default for name in OPTIONS} | {"path": shown["path"]}
        assert shown["path"] == (None if call is add_sessions else "/mcp")
    assert len(OPTIONS) <= 20


def test_option_objects_show_what_differs() -> None:
    assert repr(Limits()) == "Limits()"
    assert repr(Telemetry(trace="session", inspector_token="a-password-of-the-page")) == "Telemetry(trace='session')"


def test_a_slash_at_the_end_and_a_timedelta_make_no_difference() -> None:
    """An idle timeout may be as long as the lifetime."""
    app = sessions(Server(), path="/a/b/", lifetime=timedelta(days=1), idle_timeout=DAY)
    assert (app.path, app._runtime.lifetime, app._runtime.idle_timeout) == ("/a/b", DAY, DAY)


WRONG: list[tuple[str, list[Any], str]] = [
    ("path", ["mcp", 1], "must begin with '/', as in path='/mcp'; None means every path"),
    ("path", ["/{tenant}/mcp", "/mcp}"], r"a pattern never matches; use add_sessions\(app, path=\.\.\.\) or path=None"),
    ("audience", ["", "a\n", None], "audience=.* must be printable ASCII"),
    ("bridge", ["yes", 1], "bridge=.* must be True or False"),
    ("transport.cookie", [1, [], "Shared"], "transport.cookie=.* must be True, False or 'shared'"),
    (
        "lifetime",
        [None, float("inf"), True, "60", timedelta(0), 1e15],
        "from 1 to 3155760000 seconds, a number or a",
    ),
    ("body_timeout", [0.0005], "body_timeout=.* must be from 0.001 to"),
    ("max_batch", [0, 1.5, True, "1", None], "max_batch=.* must be a whole number of at least 1"),
    ("max_token_bytes", [511, None], "max_token_bytes=.* at least 512"),
    ("token_cache", [-1], "token_cache=.* at least 0"),
    ("create_limit", [0], "create_limit=.* at least 1"),
    ("lists", ["all", ["stable"]], "must be one of 'stable', 'session', 'untouched'"),
    ("extensions", ["fork", ("fork", "join"), None], r"must be a tuple of some of 'fork', 'list', or \(\)"),
    (
        "inspector",
        [8787, "127.0.0.1", "example.org:80", "127.0.0.1:0", "127.0.0.1:65536", "::1:80"],
        "inspector=.* must be an IP address and a port",
    ),
    ("inspector_token", ["short", "é" * 16, 1], "inspector_token= must have at least 16"),
    ("limits", [None, 1], r"limits=.* must be Limits\(...\)"),
    ("transport", ["on"], r"must be 'auto', 'off' or TransportSessions"),
    ("admission", ["never"], "must be one of 'ask', 'own'"),
    ("store", ["memory", "x:"], r"store= does not name a store; use 'memory:'"),
    ("store", [object()], "store= is a object, which lacks add, claim_ended, close"),
    ("store", [None], "store= takes a store, not None"),
    ("on_store_error", ["ignore"], "must be one of 'refuse', 'allow'"),
    ("tracked", [1, "yes"], "tracked=.* must be True, False or Tracking"),
    ("listen", ["print"], "listen= takes a function"),
    ("principal", ["print"], "principal= takes a function"),
    ("metrics", [True, print], r"metrics= takes a SessionMetrics\(\), not "),
    ("require", [{"tool/call": True}], "which is not a method; did you mean 'tools/call'"),
    ("require", ["sometimes"], "require="),
    (
        "dialects",
        ["draft", [SEP1364Create], [SEP1364Create()] * 2, [SEP1364Initialize()] * 2, [None]],
        r"\[SEP1364Create\(\), SEP1364Initialize\(\)\]; the draft .* need no naming$",
    ),
    ("idle_timeout", [7 * DAY + 1], "idle_timeout=604801 is longer than lifetime=604800"),
    ("keys", ["short"], "too short"),
]


def test_the_page_says_which_functions_may_be_async() -> None:
    kinds = {id(FUNCTION): "no", id(CLOCK): "no", id(HOOK): "yes"}
    types = {f"{kind.__name__}.{name}": one for kind in GROUPS.values() for name, one in types_of(kind).items()}
    types |= OPTIONS
    found = {name: kinds[id(one)] for name, one in types.items() if id(one) in kinds}
    listed = [(re.findall(r"`([\w.]+)`", row[0]), row[-1]) for row in rows(PAGE, "Functions")]
    said = {name: may for names, may in listed for name in names}
    assert {name: said[name] for name in found} == found
    assert said["require"] == "no"


@pytest.mark.parametrize(
    ("option", "value", "remedy"), [(option, value, remedy) for option, values, remedy in WRONG for value in values]
)
def test_a_wrong_value_is_refused_with_the_remedy(option: str, value: object, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy.replace(f"{option}=", f"{SHORT.get(option, option)}=")):
        sessions(Server(), **{option: value})


def test_what_is_no_option_and_no_application_is_an_error() -> None:
    """A server's own object has a method that makes what can be called; what is nearly a key is a secret too."""
    with pytest.raises(FrozenInstanceError):
        Limits().batch = 0  # type: ignore[misc]
    with pytest.raises(
        ConfigurationError, match=r"^object is not an ASGI application; wrap what its streamable_http_a"
    ):
        sessions(object())
    with pytest.raises(ConfigurationError) as refused:
        sessions(Server(), keys=[SECRET, "nearly-a-secret"])
    assert "nearly" not in str(refused.value)


MISSPELT: list[tuple[Callable[..., Any], str, str]] = [
    (partial(MCPSessionMiddleware, Server()), "lifetme", "did you mean lifetime=?"),
    (partial(MCPSessionMiddleware.from_env, Server()), "lifetme", "did you mean lifetime=?"),
    (partial(add_sessions, Starlette()), "lifetme", "did you mean lifetime=?"),
    (partial(add_sessions, Starlette()), "pth", "did you mean path=?"),
    (from_env, "stor", "did you mean store=?"),
    (Limits, "bach", "did you mean batch=?"),
    (Limits, "zqx", "these are known: body_bytes=, body_timeout=, batch=, "),
    (TransportSessions, "cookies", "did you mean cookie=?"),
    (Tracking, "sweep_intervall", "did you mean sweep_interval=?"),
    (Wire, "era_", "did you mean era=?"),
    (Telemetry, "span", "did you mean spans=?"),
    (partial(Handles, SECRET), "lifetimes_", "did you mean lifetimes=?"),
    (partial(KeyRing, [SECRET]), "ephemral", "did you mean ephemeral=?"),
    (MemoryStore, "max_session", "did you mean max_sessions=?"),
    (partial(SQLiteStore, "x.db"), "busy_timout", "did you mean busy_timeout=?"),
    (partial(RedisStore, "redis://x"), "prefx", "did you mean prefix=?"),
    (partial(PostgresStore, "postgresql://x"), "shema", "did you mean schema=?"),
    (partial(with_sessions, "http://x/mcp"), "on_notfound", "did you mean on_not_found=?"),
]


@pytest.mark.parametrize(("call", "keyword", "remedy"), MISSPELT)
def test_a_misspelt_keyword_says_what_was_meant(call: Callable[..., Any], keyword: str, remedy: str) -> None:
    """As a variable does. It is an error of Python's kind, too, and never shows the value, which may be a secret."""
    with pytest.raises(ConfigurationError, match=re.escape(remedy)) as refused:
        call(**{keyword: "not-shown"})
    assert isinstance(refused.value, TypeError)
    assert f"unexpected keyword argument {keyword!r}; " in str(refused.value)
    assert "not-shown" not in str(refused.value)


@pytest.mark.parametrize("kind", [*GROUPS.values(), Handles, MCPSessionMiddleware, with_sessions, MemoryStore])
def test_signatures_stay_as_they_are_written(kind: Any) -> None:
    kinds = {parameter.kind for parameter in inspect.signature(kind).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds


def test_durations_in_code_may_have_a_unit_as_in_a_variable() -> None:
    """A number in quotes may not: what it counts would be a guess."""
    app = sessions(Server(), lifetime="12h", idle_timeout="1.5h", tracked=Tracking(silence="2d", sweep_interval="5s"))
    assert (app._runtime.lifetime, app._runtime.idle_timeout) == (12 * HOUR, 5400)
    assert Limits(body_timeout="2m").body_timeout == 120
    assert TransportSessions(lifetime=" 30d ").lifetime == 30 * DAY
    handles = Handles(SECRET, lifetime="12h", clock=lambda: 1_800_000_000)
    assert handles.read("basket", handles.mint("basket")).expires_at is not None
    for wrong in ("60", "", "h", "12 hours", "nanh", "infd"):
        with pytest.raises(
            ConfigurationError, match=r"lifetime=.* a number or a timedelta, or text with a unit, as in '12h'"
        ):
            sessions(Server(), lifetime=wrong)


REFERENCES = ["env:NAME_OF_A_VARIABLE", "file:/run/secrets/what"]


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("option", ["store", "inspector_token", "audience", "issuer"])
def test_what_is_no_key_is_not_found_by_reference(environ: pytest.MonkeyPatch, option: str, reference: str) -> None:
    """In a variable neither. Else the name of a variable would be the password."""
    said = "only keys= reads env:NAME and file:PATH; "
    with pytest.raises(ConfigurationError, match=said) as refused:
        sessions(Server(), **{option: reference})
    assert SHORT.get(option, option) in str(refused.value)
    setting = SHORT.get(option, option)
    environ.setenv(variable(setting), reference)
    with pytest.raises(ConfigurationError, match=said):
        MCPSessionMiddleware(Server(), **from_env())


@pytest.mark.parametrize("keys", [b"env:NAME_OF_A_VARIABLE_WITH_KEYS", KeyRing])
def test_the_place_of_a_key_is_never_the_key(keys: Any) -> None:
    """Everyone can guess where secrets are."""
    place = "file:/run/secrets/mcp-session-keys-2026"
    with pytest.raises(ConfigurationError, match="names a place, which is read if keys= has it as text"):
        sessions(Server(), keys=KeyRing([place]) if keys is KeyRing else keys)


# --- from the environment ------------------------------------------------------------------------


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [*VARIABLES, PROGRAM]:  # the last is for other tests
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


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
    "tracked": {"TRUE": True, "1": True, "false": False, "0": False},
    "keys": {"file:/run/keys": "file:/run/keys", "env:OTHER": "env:OTHER", SECRET: "env:MCP_SESSIONS_KEYS"},
    "wire_extensions": {
        **{text: Wire(extensions=tuple(text.split(","))) for text in ("fork", "fork,list")},
        "none": Wire(extensions=()),
    },
    "telemetry_correlate": {
        **{text: Telemetry(correlate=text == "true") for text in ("true", "false")},
        "meta:openai/session,header:x-id": Telemetry(correlate=("meta:openai/session", "header:x-id")),
    },
    "limits_batch": {"7": Limits(batch=7)},
    "transport_lifetime": {"1h": TransportSessions(lifetime=HOUR)},
}


@pytest.mark.parametrize(
    ("name", "text", "value"), [(name, text, value) for name, forms in READ.items() for text, value in forms.items()]
)
def test_a_setting_is_read_in_its_form(environ: pytest.MonkeyPatch, name: str, text: str, value: Any) -> None:
    """Alone or as a field of an option object; an empty environment leaves the defaults to the middleware."""
    assert from_env() == {}
    environ.setenv(f"MCP_SESSIONS_{name.upper()}", text)
    assert from_env() == {name.partition("_")[0]: value}


@pytest.mark.parametrize("setting", ["STORE", "LIMITS_BATCH"])
def test_a_prefix_with_a_letter_too_few_is_not_passed_over(environ: pytest.MonkeyPatch, setting: str) -> None:
    """The store of a deployment would be this process's memory; another program's variables are its own."""
    environ.setenv("MCP_SESSION_OF_ANOTHER_PROGRAM", "1")
    assert from_env() == {}
    environ.setenv(f"MCP_SESSION_{setting}", "7")
    with pytest.raises(ConfigurationError, match=f"did you mean MCP_SESSIONS_{setting}?"):
        from_env()


OFF, SWEPT = {"TRANSPORT": "off", "TRANSPORT_BRIDGE": "true"}, {"TRACKED_SWEEP_INTERVAL": "7"}
FILLED = {"LIMITS_BATCH": "7", "LIMITS_NESTING": "7"}


@pytest.mark.parametrize(
    ("variables", "given", "read"),
    [
        ({"LIFETIME": "1h", "ADMISSION": "own"}, {"lifetime": 60}, {"lifetime": 60, "admission": "own"}),
        # fields fill in an object that is given in code
        (FILLED, {"limits": Limits(batch=8)}, {"limits": Limits(batch=8, nesting=7)}),
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


TAKEN = "is not a setting; did you mean MCP_SESSIONS_LIFETIME?"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        *((name, "1h", f"MCP_SESSIONS_{name} {TAKEN}") for name in ("LIFTIME", "lifetime")),
        ("ZQX", "1", "MCP_SESSIONS_ZQX is not a setting; these are settings: MCP_SESSIONS_KEYS, "),
        ("ON_END", "free", "no variable holds on_end=; give it in code, as in from_env(on_end=...)"),
        ("TELEMETRY_LISTEN", "f", "no variable holds listen=; give it in code, as in from_env(telemetry=Telemetry("),
        ("STORE", "  ", "MCP_SESSIONS_STORE is empty; remove it, or write `memory:`"),
        ("LIFETIME", "soon", "MCP_SESSIONS_LIFETIME='soon' must be seconds, or a number with"),
        ("LIMITS_BATCH", "many", "MCP_SESSIONS_LIMITS_BATCH='many' must be a whole number"),
        ("TRACKED", "perhaps", "MCP_SESSIONS_TRACKED='perhaps' must be `true` or `false`"),
        ("REQUIRE", "{tools}", "MCP_SESSIONS_REQUIRE='{tools}' must be `never`, `always`"),
        # what only looks like a Service of Kubernetes
        *(
            (name, "80", f"MCP_SESSIONS_{name} is not a setting")
            for name in ("PORTS", "PORT_80", "SERVICE", "service_host", "A_PORT", "LIMITS_PORT", "A_NAME", "REDIS_ENV")
        ),
        *(
            pytest.param(f"{name}", "80", f"MCP_SESSIONS_{name} is not a setting")
            for name in ("PORT", "SERVICE_PORTS", "PORT_80_TCP_NAME")
        ),
    ],
)
def test_a_wrong_setting_says_what_to_write(environ: pytest.MonkeyPatch, name: str, text: str, said: str) -> None:
    environ.setenv(f"MCP_SESSIONS_{name}", text)
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        from_env()


LINKS = {
    "SERVICE_HOST": "10.0.0.11",
    "SERVICE_PORT": "6379",
    "SERVICE_PORT_HTTP": "6379",
    "SERVICE_PORT_HTTP_2": "6379",
    "PORT": "tcp://10.0.0.11:6379",
    "PORT_6379_TCP": "tcp://10.0.0.11:6379",
    "PORT_6379_TCP_PROTO": "tcp",
    "PORT_6379_TCP_PORT": "6379",
    "PORT_6379_TCP_ADDR": "10.0.0.11",
    "PORT_53_UDP_ADDR": "fd00::1",
    "PORT_99_SCTP": "sctp://[fd00::1]:99",
    "PORT_6379_TCP_START": "tcp://172.17.0.5:6379",
    "PORT_6379_TCP_PORT_END": "6381",
    "NAME": "/web/db",
    "ENV_REDIS_VERSION": "7.2",
    "ENV_path": "",
}


@pytest.mark.parametrize("service", ["", "REDIS_", "REDIS_2_", "STORE_", "A_PORT_", "LIMITS_"])
def test_what_kubernetes_and_docker_say_of_services_is_no_setting(environ: pytest.MonkeyPatch, service: str) -> None:
    """They say so to every container beside a service whose name begins with `mcp-sessions`."""
    for name, text in LINKS.items():
        environ.setenv(f"MCP_SESSIONS_{service}{name}", text)
    assert from_env() == {}


def test_no_setting_is_taken_for_that_of_a_service() -> None:
    texts = ("tcp://10.0.0.11:80", "/web/db", "80")
    assert not [name for name in VARIABLES for text in texts if SERVICE_LINK.fullmatch(f"{name}={text}")]


async def test_the_middleware_takes_settings(environ: pytest.MonkeyPatch) -> None:
    for name, text in (("KEYS", SECRET), ("REQUIRE", "tools/call")):
        environ.setenv(PREFIX + name, text)
    given: dict[str, Any] = {**from_env(admission="own"), "path": "/mcp"}
    added = add_sessions(Starlette(routes=[Route("/mcp", Server())]), **given)
    for app in (MCPSessionMiddleware.from_env(Server(), admission="own"), added):
        client = Client(app)
        assert (await client.tool()).error["code"] == -31044
        assert (await client.tool(session=await client.create())).status == 200


# --- the page ------------------------------------------------------------------------------------


def test_every_default_can_be_written(environ: pytest.MonkeyPatch) -> None:
    """The page lists every setting, and what it shows as a default is that default, which the middleware takes."""
    first, _, rest = PAGE.partition("### Common settings")[2].partition("### Behavior")
    examples = re.findall(r"^`(MCP_SESSIONS_\w+)=.*`\n: (?:.* Default: `(.+)`\.)?", first, re.MULTILINE)
    others = re.findall(r"^`(MCP_SESSIONS_\w+)(?:=(.+))?`$", rest, re.MULTILINE)
    assert sorted(name for name, _ in examples + others) == sorted(map(variable, SETTINGS))
    for name, default in examples + others:
        if default:
            environ.setenv(name, default)
    read: dict[str, Any] = {**from_env()}
    plain = {name: value for name, value in read.items() if name not in GROUPS}
    assert plain == {name: PARAMETERS[name].default for name in plain}
    assert all(read.get(group, False) in (kind(), "auto", False) for group, kind in GROUPS.items())
    assert isinstance(MCPSessionMiddleware(Server(), **read), MCPSessionMiddleware)


@needs("mcp>=2")
@pytest.mark.parametrize("block", blocks(PAGE), ids="12")
async def test_the_code_of_the_page_runs(environ: pytest.MonkeyPatch, block: str) -> None:
    environ.setenv("MCP_SESSIONS_KEYS", SECRET)
    environ.setenv("MCP_SESSIONS_ADMISSION", "own")
    refused = await Client(run(block)["app"], query_string=b"").tool(session={"sessionId": "nobody's"})
    assert refused.error["code"] == -32043


def test_the_settings_that_the_page_shows_are_settings(environ: pytest.MonkeyPatch) -> None:
    for name, text in re.findall(r"^\$ export (\w+)='?(.*?)'?$", PAGE, re.MULTILINE):
        environ.setenv(name, text)
    assert from_env() == {
        "keys": "file:/run/secrets/session-keys",
        "store": "redis://cache.internal:6379/0",
        "lifetime": 12 * HOUR,
        "require": {"tools/call": ["checkout"]},
    }
