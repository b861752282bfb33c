"""Behind proxies, and beside other servers: the cookie goes where its client sends it back, or the log says why not."""

import logging
from http.cookies import SimpleCookie
from typing import Any

import pytest
from apps import Server, sessions
from clients import DISCOVER, Answer, Client, Header
from granian.utils.proxies import wrap_asgi_with_proxy_headers
from hypercorn.middleware import ProxyFixMiddleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from mcp_sessions import TransportSessions
from mcp_sessions._server import logs

CLIENT = "203.0.113.9"
FORWARDED: Header = (b"x-forwarded-for", CLIENT.encode())
HTTPX: Header = (b"user-agent", b"python-httpx/0.28.1")
STRIPS = "strips a prefix of its path"


@pytest.fixture(autouse=True)
def quiet_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each line be logged once in each test."""
    monkeypatch.setattr(logs, "_warned", set())


def prefix(*values: bytes) -> list[Header]:
    return [(b"x-forwarded-prefix", value) for value in values]


def host(value: bytes) -> Header:
    return (b"host", value)


def path_of(answer: Answer) -> str:
    """Return the path of the cookie that an answer sets."""
    (header,) = (value for name, value in answer.start["headers"] if name == b"set-cookie")
    _, morsel = SimpleCookie(header.decode()).popitem()
    return str(morsel["path"])


async def count(client: Client, *headers: Header) -> Any:
    return (await client.tool("count", *headers)).result["content"]


# --- several servers on one host -------------------------------------------------------------------


@pytest.mark.parametrize("keys", ["one-secret-for-both-of-these-servers", "another-secret-for-the-second-server"])
async def test_servers_on_two_ports_share_a_cookie_jar(keys: str) -> None:
    """Browsers and HTTP clients send a host's cookies to all of its ports, so the names differ."""
    apps = Server(), Server()
    secrets = "one-secret-for-both-of-these-servers", keys
    clients = [Client(sessions(app, keys=secret)) for app, secret in zip(apps, secrets, strict=True)]
    hosts = [host(b"127.0.0.1:8000"), host(b"127.0.0.1:8001")]
    cookies = [(await client.send(DISCOVER, None, at)).cookie[1] for client, at in zip(clients, hosts, strict=True)]
    jar = (b"cookie", b"; ".join(cookies))
    for _ in range(2):
        for client, at in zip(clients, hosts, strict=True):
            await count(client, at, jar)
    assert [await count(client, at, jar) for client, at in zip(clients, hosts, strict=True)] == [3, 3]
    assert all(b"cookie" not in app.last.headers for app in apps)


async def test_servers_on_two_paths_share_a_cookie_jar() -> None:
    """One at the root of the host gets the other's cookie, too."""
    inner, outer = Client(sessions(Server())), Client(sessions(Server(), path="/"), path="/")
    cookies = [(await client.send(DISCOVER)).cookie[1] for client in (inner, outer)]
    jar = (b"cookie", b"; ".join(cookies))
    assert [await count(inner, jar) for _ in range(2)] == [1, 2]
    assert [await count(outer, (b"cookie", cookies[1])) for _ in range(2)] == [1, 2]


@pytest.mark.parametrize(
    "headers",
    [
        [host(b"mcp.example")],
        [host(b"mcp.example:443")],
        [host(b"127.0.0.1:8001"), (b"x-forwarded-host", b"mcp.example, proxy.internal:8080")],
    ],
    ids=["no port", "the default port", "a worker's own port"],
)
async def test_all_workers_behind_a_proxy_know_the_cookie(headers: list[Header]) -> None:
    """Some proxies put the worker's address in place of the host that the client asked."""
    client = Client(sessions(Server()))
    first = host(b"127.0.0.1:8000"), (b"x-forwarded-host", b"mcp.example")
    cookie = (await client.send(DISCOVER, None, *first)).cookie
    assert [await count(client, cookie, *headers) for _ in range(2)] == [1, 2]


# --- a proxy that strips a prefix of the path --------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "scope", "path"),
    [
        (prefix(b"/tools"), {}, "/tools/mcp"),
        (prefix(b"/tools/"), {}, "/tools/mcp"),
        (prefix(b"/api, /v1"), {}, "/api/v1/mcp"),
        (prefix(b"/api", b"/v1"), {}, "/api/v1/mcp"),
        (prefix(b"/a%20b"), {}, "/a%20b/mcp"),
        (prefix(b"/tools"), {"root_path": "/tools", "path": "/tools/mcp"}, "/tools/mcp"),
        (prefix(b"/tools"), {"root_path": "/inner", "path": "/inner/mcp"}, "/tools/inner/mcp"),
        (prefix(b"/"), {}, "/mcp"),
        (prefix(b"tools"), {}, "/mcp"),
        (prefix(b"/tools; Domain=example"), {}, "/mcp"),
        (prefix(b"/tools\xff"), {}, "/mcp"),
    ],
)
async def test_prefix_of_trusted_proxy_is_in_the_path(sent: list[Header], scope: dict[str, Any], path: str) -> None:
    client = Client(sessions(Server()), client=(CLIENT, 0), **{"path": "/mcp", **scope})
    assert path_of(await client.send(DISCOVER, None, FORWARDED, *sent)) == path


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn", "granian"])
async def test_servers_show_whether_they_trust_their_proxy(server: str) -> None:
    """By the client's address, which they take from the proxy's header."""
    app = sessions(Server())
    trusting = {
        "uvicorn": ProxyHeadersMiddleware(app, "127.0.0.1"),  # type: ignore[arg-type]
        "hypercorn": ProxyFixMiddleware(app),  # type: ignore[arg-type]
        "granian": wrap_asgi_with_proxy_headers(app, "127.0.0.1"),
    }[server]
    client = Client(trusting, client=("127.0.0.1", 50_000))
    assert path_of(await client.send(DISCOVER, None, FORWARDED, *prefix(b"/tools"))) == "/tools/mcp"


@pytest.mark.parametrize("sent", [[], [FORWARDED]], ids=["nothing of the client", "another client"])
async def test_prefix_of_other_senders_is_ignored(sent: list[Header], caplog: pytest.LogCaptureFixture) -> None:
    """The log names the cause of the session that will be lost, once."""
    client = Client(sessions(Server()), client=("127.0.0.1", 50_000))
    for _ in range(2):
        assert path_of(await client.send(DISCOVER, None, *sent, *prefix(b"/tools"))) == "/mcp"
    (line,) = [line for line in caplog.messages if "X-Forwarded-Prefix" in line]
    assert all(word in line for word in ("'/tools'", "--forwarded-allow-ips", "--root-path", "cookie_path="))


async def test_cookie_path_is_set_as_given(caplog: pytest.LogCaptureFixture) -> None:
    """For proxies that do not say what they strip, such as the stage of an API gateway."""
    client = Client(sessions(Server(), transport=TransportSessions(cookie_path="/prod/mcp")))
    answer = await client.send(DISCOVER, None, *prefix(b"/tools"))
    assert path_of(answer) == "/prod/mcp"
    assert [await count(client, answer.cookie) for _ in range(2)] == [1, 2]
    assert not [line for line in caplog.messages if "X-Forwarded-Prefix" in line]


@pytest.mark.parametrize("wrong", ["", "prod", "/a;b", "/a b", "/ä", 1])
def test_cookie_path_that_no_cookie_can_have_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"transport\.cookie_path="):
        TransportSessions(cookie_path=wrong)


@pytest.mark.parametrize(
    "header",
    [
        (b"x-forwarded-prefix", b"/tools"),
        (b"x-forwarded-path", b"/tools/mcp"),
        (b"x-forwarded-uri", b"/tools/mcp?x=1"),
        (b"x-envoy-original-path", b"/tools/mcp"),
        (b"x-original-uri", b"/tools/mcp/"),
    ],
)
async def test_stripped_prefix_is_named_in_the_log(header: Header, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mcp_sessions")
    await Client(sessions(Server())).tool("asks", HTTPX, header)
    (line,) = [line for line in caplog.messages if "has no session" in line]
    assert STRIPS in line
    assert "--root-path" in line


@pytest.mark.parametrize("header", [(b"x-original-uri", b"/mcp"), (b"x-forwarded-path", b"/other"), HTTPX])
async def test_stripped_prefix_is_possible_if_nothing_shows_it(
    header: Header, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that keeps cookies sent none: the log names what may be the cause."""
    caplog.set_level(logging.INFO, "mcp_sessions")
    await Client(sessions(Server())).tool("asks", HTTPX, header)
    (line,) = [line for line in caplog.messages if "has no session" in line]
    assert STRIPS not in line
    assert "a proxy strips a path prefix" in line


# --- TLS that ends at a proxy -------------------------------------------------------------------------


async def test_tls_that_ends_elsewhere_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A server that does not trust its proxy cannot know that the client used https."""
    client = Client(sessions(Server()))
    for _ in range(2):
        answer = await client.send(DISCOVER, None, (b"x-forwarded-proto", b"https"))
        assert b"Secure" not in dict(answer.start["headers"])[b"set-cookie"]
    (line,) = [line for line in caplog.messages if "X-Forwarded-Proto" in line]
    assert "not Secure" in line
    assert "--forwarded-allow-ips" in line


async def test_tls_of_trusted_proxy_makes_the_cookie_secure(caplog: pytest.LogCaptureFixture) -> None:
    app = ProxyHeadersMiddleware(sessions(Server()), "127.0.0.1")  # type: ignore[arg-type]
    client = Client(app, client=("127.0.0.1", 50_000))  # type: ignore[arg-type]
    answer = await client.send(DISCOVER, None, FORWARDED, (b"x-forwarded-proto", b"https"))
    assert dict(answer.start["headers"])[b"set-cookie"].startswith(b"__Secure-")
    assert not [line for line in caplog.messages if "X-Forwarded-Proto" in line]
