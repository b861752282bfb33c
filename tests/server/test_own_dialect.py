"""A dialect of one's own: one file, given to the middleware by `dialects=`."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlencode

import pytest
from apps import Server, sessions
from clients import Client

from mcp_sessions import ConfigurationError
from mcp_sessions._errors import SessionNotFound
from mcp_sessions.dialects import Answers, Change, Credential, Dialect, NoCredential, Request, SaveState
from mcp_sessions.testing import Answer, Call, DialectContract, Held


class InQuery(Dialect):
    """A session id in the query string, created by a method of the dialect."""

    name = "query"
    kinds = frozenset({"query"})

    def __init__(self) -> None:
        self._begin = Answers(self.begin)

    def answers(self, request: Request) -> Answers | None:
        return self._begin if request.message is not None and request.message.method == "query/begin" else None

    def extract(self, request: Request) -> None:
        query = parse_qs(request.scope.get("query_string", b"").decode())
        if "session" in query:
            (request.credentials[self.name],) = query.pop("session")
            request.scope["query_string"] = urlencode(query, doseq=True).encode()

    def find(self, request: Request, earlier: Sequence[Credential]) -> Credential | NoCredential | None:
        if earlier:
            return None
        session_id = request.credentials.get(self.name)
        if session_id is None:
            return NoCredential("it sent no session in its query", "call query/begin")
        return Credential(self, session_id, "query")

    def changes(self, request: Request, session: Any) -> Sequence[Change]:
        return () if session is None else (SaveState(session=session),)

    async def begin(self, request: Request) -> dict[str, Any]:
        return {"query": (await self.create(request, "query")).id}


class TestInQuery(DialectContract):
    options: ClassVar[Mapping[str, Any]] = {"dialects": [InQuery()]}
    begins: ClassVar[Call | None] = Call("query/begin")

    def held(self, answer: Answer) -> Held:
        return Held(answer.result["query"])

    def carry(self, held: Held, call: Call) -> None:
        call.query = f"session={held.id}".encode()


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
    await silent.before_call(request)
    assert type(silent.change_tools(request)) is Change
    await silent.prepare(request)
    assert silent.wrap(request, silent_app := Server()) is silent_app
    assert [silent.reaches(request), silent.concerns(message), silent.requires(request, None)] == [False] * 3
    assert [silent.answers(request), silent.find(request, ()), silent.absence(request, message)] == [None] * 3
    assert silent.startup_warning([]) is None
    assert silent.changes(request, None) == ()
    assert await silent.refuse(request, SessionNotFound("event_unknown")) is None
    assert (await Client(sessions(Server(), dialects=[silent]), modern=False).tool()).session is None
