"""The command that examines a server: its arguments, what it prints, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from faulty import Faulty, Reply, listening

from mcp_sessions import cli


def test_a_server_that_is_right_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    """And prints a table."""
    with listening(Faulty()) as url:
        assert cli.main(["probe", url, "--seconds", "60", "--requests", "200"]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0] == url
    assert "0 fail" in said


def test_a_fault_exits_with_1_and_json_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    """For CI."""
    with listening(Faulty(frozenset({"replay"}))) as url:
        assert cli.main(["probe", url, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["holds"] is False
    assert {one["rule"] for one in report["findings"] if one["outcome"] == "fails"} == {"replay", "delete-again"}


@pytest.mark.parametrize("faults", [(), ("use", "listed", "unnamed", "replay", "stateful")])
def test_no_session_id_and_no_state_is_printed(faults: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """They are credentials of somebody's server, whatever is wrong with it."""
    server = Faulty(frozenset(faults))
    with listening(server) as url:
        for form in ([], ["--json"]):
            cli.main(["probe", url, *form])
    said = capsys.readouterr()
    assert len(server.given) > 10
    assert not [one for one in [*server.given, "sealed"] if one in said.out + said.err]


@pytest.mark.parametrize(
    "arguments",
    [
        ["ftp://host.example/mcp"],
        [],
        ["http://127.0.0.1:1/", "--seconds", "0"],
        ["http://127.0.0.1:1/", "--requests", "many"],
        ["http://127.0.0.1:1/", "--token", "the-token-itself"],
        ["http://127.0.0.1:1/", "--token", "env:NO_SUCH_TOKEN"],
        ["http://127.0.0.1:1/", "--token", "file:/no/such/file"],
    ],
)
def test_what_cannot_be_carried_out_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """And says why; a token that was typed is not repeated."""
    assert cli.main(["probe", *arguments]) == 2
    said = capsys.readouterr()
    assert said.err
    assert "the-token-itself" not in said.out + said.err


def test_a_redirect_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Another address was typed than is meant."""
    with listening(lambda verb, headers, body: (307, {"location": "/"}, b"")) as url:
        assert cli.main(["probe", url]) == 2
    assert "a redirect" in capsys.readouterr().err


def test_nobody_there_exits_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody knows what would hold."""
    with listening(Faulty()) as url:
        pass
    assert cli.main(["probe", url]) == 3
    assert "the connection failed" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["env", "file"])
def test_a_token_is_named(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A variable, or a file; every request carries it."""
    monkeypatch.setenv("ACCESS", "from-env")
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
