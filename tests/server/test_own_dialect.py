"""A dialect of one's own: one file, given to the middleware by `dialects=`."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

import pytest
from apps import Server, sessions
from clients import Client, by, user_of

from mcp_sessions import ConfigurationError
from mcp_sessions._errors import SessionNotFound
from mcp_sessions.dialects import Answers, Change, Credential, Dialect, NoCredential, Request, SaveState


class InQuery(Dialect):
    """A session id in the query string, created by a method of the dialect."""

    name = "query"
    kinds = frozenset({"query"})

    def __init__(self) -> None:
        self._begin = Answers(self.begin)

    def answers(self, request: Request) -> Answers | None:
        return self._begin if request.message is not None and request.message.method == "query/begin" else None

    def find(self, request: Request, earlier: Sequence[Credential]) -> Credential | NoCredential | None:
        ids = parse_qs(request.scope.get("query_string", b"").decode()).get("session", [])
        if earlier or not ids:
            return None if earlier else NoCredential("it sent no session in its query", "call query/begin")
        return Credential(self, ids[0], "query")

    def changes(self, request: Request, session: Any) -> Sequence[Change]:
        return () if session is None else (SaveState(session=session),)

    async def begin(self, request: Request) -> dict[str, Any]:
        return {"query": (await self.create(request, "query")).id}


async def begun(app: Any) -> Client:
    """A client of the dialect, in a session."""
    answer = await Client(app, modern=False).send("query/begin", None, by("ann"))
    return Client(app, modern=False, query_string=b"session=" + answer.result["query"].encode())


async def test_session_of_own_dialect_keeps_its_state() -> None:
    client = await begun(sessions(Server(), dialects=[InQuery()], principal=user_of))
    counted = [(await client.tool("count", by("ann"))).result["content"] for _ in range(2)]
    assert counted == [1, 2]


async def test_id_of_own_dialect_is_worth_nothing_elsewhere() -> None:
    """To another caller, in `_meta`, or changed."""
    app = sessions(Server(), dialects=[InQuery()], principal=user_of)
    client = await begun(app)
    token = client.scope["query_string"].partition(b"=")[2].decode()
    forged = Client(app, modern=False, query_string=b"session=" + token[:-4].encode() + b"AAAA")
    answers = [
        await client.tool("whoami", by("bob")),
        await Client(app, modern=False).tool("whoami", by("ann"), session={"sessionId": token}),
        await forged.tool("whoami", by("ann")),
    ]
    assert [answer.error["code"] for answer in answers] == [-32043] * 3


async def test_missing_session_of_own_dialect_is_refused_if_required() -> None:
    app = sessions(Server(), dialects=[InQuery()], require="always", transport="off")
    assert (await Client(app, modern=False).tool()).error["code"] == -31044


@pytest.mark.parametrize("dialects", [[InQuery(), InQuery()], [InQuery], "query"], ids=["twice", "class", "text"])
def test_each_dialect_is_given_once_as_an_object(dialects: Any) -> None:
    with pytest.raises(ConfigurationError, match="must name each dialect once"):
        sessions(Server(), dialects=dialects)


class Silent(Dialect):
    """A dialect that changes nothing."""

    name = "silent"


async def test_what_a_dialect_leaves_out_changes_nothing() -> None:
    """The middleware asks only for what a dialect has; a dialect that calls its base class gets as little."""
    silent = Silent()
    request: Any = None
    message: Any = None
    silent.extract(request)
    await silent.before_discovery(request)
    await silent.prepare(request)
    assert silent.wrap(request, silent_app := Server()) is silent_app
    assert [silent.reaches(request), silent.concerns(message), silent.requires(request, None)] == [False] * 3
    assert [silent.answers(request), silent.find(request, ()), silent.absence(request, message)] == [None] * 3
    assert silent.changes(request, None) == ()
    assert await silent.refuse(request, SessionNotFound("event_unknown")) is None
    assert (await Client(sessions(Server(), dialects=[silent]), modern=False).tool()).session is None
