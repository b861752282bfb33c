"""`mcp-sessions probe`: its arguments, what it prints of a server, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from faulty import OFFERS, Faulty, Reply, json_reply, listening

from mcp_sessions import _cli as cli
from mcp_sessions._cli.probe import Report, probe
from mcp_sessions._cli.probe_client import MAX_BYTES, PATIENCE, Wire
from mcp_sessions._cli.probe_rules import RULES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "probe.md").read_text("utf-8")

# --- the command ---------------------------------------------------------------------------------


def test_a_right_server_exits_with_0_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The table has the server's eras, each rule with its clause, and the sum."""
    with listening(Faulty()) as url:
        assert cli.main(["probe", url, "--seconds", "60", "--requests", "200"]) == 0
    lines = capsys.readouterr().out.splitlines()
    offers = '{"required": "never", "fork": true, "list": true}'
    assert lines[:3] == [url, f"  legacy  2025-11-25  draft  {offers}", f"  modern  2026-07-28  draft  {offers}"]
    assert lines[4] == "legacy"
    says = "a session is created; its id is visible ASCII"
    assert lines[6] == f"  ok    create          {says:<50} draft: Creating Sessions, Data Types"
    skipped = next(at for at, line in enumerate(lines) if line.startswith("  -     mirrored"))
    assert lines[skipped + 1] == "        in the legacy era the header names the transport's session"
    assert lines[-1].startswith(f"{2 * len(RULES) - 5} hold, 0 fail, 5 skipped; ")


def test_a_fault_exits_with_1_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """In the table with what was seen, and in the JSON that CI reads."""
    with listening(Faulty(frozenset({"replay"}))) as url:
        assert cli.main(["probe", url]) == 1
        table = capsys.readouterr().out.splitlines()
        assert cli.main(["probe", url, "--json"]) == 1
    failed = next(at for at, line in enumerate(table) if line.startswith("  FAIL  replay "))
    assert table[failed + 1] == "        HTTP 200, a result"
    report = json.loads(capsys.readouterr().out)
    fails = [one for one in report["findings"] if one["outcome"] == "fails"]
    assert (report["holds"], report["stopped"]) == (False, None)
    assert [one["rule"] for one in fails] == ["replay", "delete-again"] * 2
    assert fails[0] == {
        "era": "legacy",
        "rule": "replay",
        "says": "a deleted session is not found, -32043",
        "clause": "draft: Schema",
        "outcome": "fails",
        "seen": "HTTP 200, a result",
    }
    assert report["eras"][0] == {"era": "legacy", "version": "2025-11-25", "dialects": ["draft"], "offers": OFFERS}


@pytest.mark.parametrize("faults", [(), ("use", "listed", "unnamed", "replay", "stateful")])
def test_no_session_id_and_no_state_is_printed(faults: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """They are credentials, whatever is wrong with the server."""
    server = Faulty(frozenset(faults))
    with listening(server) as url:
        for form in ([], ["--json"]):
            cli.main(["probe", url, *form])
    printed = capsys.readouterr()
    assert len(server.given) > 10
    assert not [one for one in [*server.given, "sealed"] if one in printed.out + printed.err]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["http://127.0.0.1:1/", "--seconds", "0"],
        ["http://127.0.0.1:1/", "--requests", "many"],
        ["http://127.0.0.1:1/", "--token", "the-token-itself"],
        ["http://127.0.0.1:1/", "--token", "env:NO_SUCH_TOKEN"],
        ["http://127.0.0.1:1/", "--token", "env:TWO_WORDS"],
        ["http://127.0.0.1:1/", "--token", "file:/no/such/file"],
    ],
)
def test_an_impossible_command_exits_with_2(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TWO_WORDS", "the-token-itself and more")
    assert cli.main(["probe", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err
    assert "the-token-itself" not in printed.out + printed.err


@pytest.mark.parametrize(
    "url",
    [
        *("", "host.example/mcp", "ftp://host.example/mcp", "file:///etc/passwd", "http://", "http:///mcp"),
        *("http://h.example:0/", "http://h.example:x/", "http://h.example/a b", "http://h.example/\n"),
        *("http://h\u00e9/", "http://h..example/", f"http://{'h' * 64}.example/", "http://[::1/"),
        *("http://user@h.example/", "http://user:pass@h.example/", "http://h.example/#there"),
    ],
)
def test_a_url_of_no_server_exits_with_2(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is sent; a password in it is not repeated."""
    assert cli.main(["probe", url]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("the URL must")
    assert "pass@" not in printed


@pytest.mark.parametrize("kind", ["env", "file"])
def test_a_named_token_comes_with_every_request(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From a variable or a file, without the white space around it."""
    monkeypatch.setenv("ACCESS", " from-env\n")
    (tmp_path / "token").write_text("from-file\n")
    server = Faulty()
    seen: set[str | None] = set()

    def answer(verb: str, headers: Mapping[str, str], body: bytes) -> Reply:
        seen.add(headers.get("authorization"))
        return server(verb, headers, body)

    place = {"env": "ACCESS", "file": str(tmp_path / "token")}[kind]
    with listening(answer) as url:
        assert cli.main(["probe", url, "--token", f"{kind}:{place}"]) == 0
    assert seen == {f"Bearer from-{kind}"}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_exits_with_2(status: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even to the same server: only the address that was typed is asked."""
    requests: list[str] = []

    def answer(verb: str, headers: Mapping[str, str], body: bytes) -> Reply:
        requests.append(verb)
        return status, {"location": "/elsewhere"}, b""

    with listening(answer) as url:
        assert cli.main(["probe", url]) == 2
    assert capsys.readouterr().err == f"the server answers HTTP {status}, a redirect: give the URL of the endpoint\n"
    assert requests == ["POST"]


def test_a_server_that_is_gone_exits_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    with listening(Faulty()) as url:
        pass
    assert cli.main(["probe", url]) == 3
    assert capsys.readouterr().out.endswith("; the connection failed (ConnectionRefusedError)\n")


def test_the_page_has_every_rule_and_every_bound() -> None:
    """The rules in the order in which they are tried, each with a name of its own and its clause."""
    rows = [line for line in PAGE.splitlines() if line.startswith("- `")]
    assert rows == [f"- `{rule.name}`: {rule.says} ({rule.clause})" for rule in RULES]
    assert len({rule.name for rule in RULES}) == len(RULES)
    arguments = cli._parser().parse_args(["probe", "http://host.example/mcp"])
    assert f"{arguments.requests} requests and {arguments.seconds} seconds" in PAGE
    assert f"{PATIENCE:g} seconds for one answer" in PAGE


# --- what a server speaks ------------------------------------------------------------------------


STRANGE_OFFERS: list[Any] = [None, [], {"sessions": None}, {"sessions": []}]
STRANGE_VERSIONS: list[Any] = [
    *("2025\x1b[2J", "2025\u2713", "2025-11-2\u0665", "2025-11-25\n", "1999-01-01"),
    *(20251125, None, ["2025-11-25"]),
]


def answering(result: dict[str, Any], **headers: str) -> Report:
    """What the probe reports of a legacy server that answers `initialize` so."""

    def answer(verb: str, request_headers: Mapping[str, str], body: bytes) -> Reply:
        message = json.loads(body or b"{}")
        if message.get("method") != "initialize":
            return 404, {}, b""
        status, kind, text = json_reply({"id": message["id"], "result": result})
        return status, {**kind, **headers}, text

    with listening(answer) as url:
        return probe(Wire(url))


@pytest.mark.parametrize(
    ("capabilities", "headers", "dialects"),
    [
        ({"sessions": {}}, {}, ["draft"]),
        ({"sessions": {"required": True}}, {}, ["draft", "SEP-1364"]),
        ({}, {"mcp-session-id": "own"}, ["transport sessions of its own"]),
        *(({"experimental": strange}, {}, []) for strange in STRANGE_OFFERS),
    ],
)
def test_dialects_follow_from_capabilities_and_headers(
    capabilities: dict[str, Any], headers: dict[str, str], dialects: list[str]
) -> None:
    (era,) = answering({"capabilities": capabilities}, **headers).eras
    assert (era.era, era.dialects, era.offers) == ("legacy", dialects, {})


def test_settings_are_shown_where_they_are_known() -> None:
    report = answering({"capabilities": {"experimental": {"sessions": {"fork": ["fresh"], "x\x1b": "anything"}}}})
    assert report.eras[0].offers == {"fork": ["fresh"]}


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        ("2025-03-26", "2025-03-26"),
        *((strange, "(unusual)") for strange in STRANGE_VERSIONS),
    ],
)
def test_a_version_is_shown_where_it_is_a_date(version: object, shown: str) -> None:
    """Anything else would reach the terminal as the server wrote it."""
    report = answering({"capabilities": {}, "protocolVersion": version})
    assert report.eras[0].version == shown
    assert "\x1b" not in report.as_text()


# --- where it ends -------------------------------------------------------------------------------


def test_spent_requests_stop_the_probe() -> None:
    """What was found so far stands, and the report says that it is not all."""
    with listening(Faulty()) as url:
        report = probe(Wire(url, requests=20))
    assert (report.requests, report.holds) == (20, False)
    assert report.as_text().endswith("; 20 requests; stopped after 20 requests, at the limit (--requests, --seconds)\n")
    assert len(report.findings) > 5


def test_spent_time_stops_the_probe() -> None:
    ticks = iter(range(100))
    with listening(Faulty()) as url:
        report = probe(Wire(url, seconds=25, clock=lambda: float(next(ticks))))
    assert report.stopped == f"stopped after {report.requests} requests, at the limit (--requests, --seconds)"
    assert 0 < report.requests < 25


def test_one_request_without_an_answer_fails_its_rule_alone() -> None:
    server = Faulty()

    def answer(verb: str, headers: Mapping[str, str], body: bytes) -> Reply:
        return (200, {}, b" " * (MAX_BYTES + 1)) if b"AAAAAAAA" in body else server(verb, headers, body)

    with listening(answer) as url:
        report = probe(Wire(url))
    fails = [(one.rule, one.seen) for one in report.findings if one.outcome == "fails"]
    assert fails == [("oversized", f"an answer of more than {MAX_BYTES} bytes")] * 2
