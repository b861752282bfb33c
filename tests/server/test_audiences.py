"""Deployments that share a store, each with an audience of its own, do not notice each other."""

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from apps import Server, sessions
from clients import SECRET, Client, Clock, Header, by, user_of
from every_store import STORES

from mcp_sessions import Principal, Session, Sessions
from mcp_sessions._errors import DataTooLarge, StoreFull
from mcp_sessions.stores import MemoryStore

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the driver of Redis knows no other
AUDIENCES = ("shop", "bank")
CALLERS = pytest.mark.parametrize("caller", [[by("alice")], []], ids=["principal", "anonymous"])
DATA = {"limits.data_bytes_per_principal": 1000, "limits.anonymous_data_bytes": 1000}
COUNT = {"limits.sessions_per_principal": 1, "limits.anonymous_sessions": 1}


async def keep(session: Session | None, arguments: dict[str, Any]) -> Any:
    """Keep a value of 700 bytes, and say whether there was room."""
    assert session is not None
    try:
        await session.data.set("k", "x" * 700)
    except DataTooLarge:
        return "full"
    except StoreFull:
        return "store full"
    return "kept"


def deployments(store: Any, **options: Any) -> list[Client]:
    """Return a client of each deployment."""
    common = {"store": store, "principal": user_of, "tracked": True, **options}
    return [Client(sessions(Server(keep=keep), audience=audience, **common)) for audience in AUDIENCES]


async def kept(client: Client, *caller: Header) -> str:
    """Keep a value in a new session."""
    return str((await client.tool("keep", *caller, session=await client.create(*caller))).result["content"])


@pytest.mark.parametrize("kind", STORES)
@CALLERS
async def test_no_deployment_fills_the_data_of_another(kind: str, caller: list[Header], tmp_path: Path) -> None:
    store = STORES[kind](Clock(), tmp_path)
    shop, bank = deployments(store, **DATA)
    for client in (shop, bank):
        assert [await kept(client, *caller), await kept(client, *caller)] == ["kept", "full"]
    await store.close()


@pytest.mark.parametrize("kind", STORES)
@CALLERS
async def test_no_deployment_fills_the_sessions_of_another(kind: str, caller: list[Header], tmp_path: Path) -> None:
    store = STORES[kind](Clock(), tmp_path)
    for client in deployments(store, **COUNT):
        await client.create(*caller)
        assert (await client.send("sessions/create", None, *caller)).error["code"] == -31047
    await store.close()


@pytest.mark.parametrize("kind", STORES)
async def test_an_operator_sees_and_ends_one_deployment_s_sessions(kind: str, tmp_path: Path) -> None:
    """By principal, by name, or all before a moment."""
    store = STORES[kind](clock := Clock(), tmp_path)
    shop, bank = deployments(store, clock=clock)
    alice = by("alice")
    ours, theirs = await shop.create(alice), await bank.create(alice)
    operators = [Sessions(store=store, keys=SECRET, audience=audience, clock=clock) for audience in AUDIENCES]
    of = [await operator.of() for operator in operators]
    assert [[record.audience for record in records] for records in of] == [["shop"], ["bank"]]
    assert await operators[0].end(of[1][0].ref) is False
    clock.now += 1
    assert (await operators[0].end_all(Principal(subject="alice"))).recorded == 1
    assert "error" in (await shop.tool("whoami", alice, session=ours)).json
    assert (await bank.tool("whoami", alice, session=theirs)).result["content"] == of[1][0].ref
    await operators[0].end_all_before(datetime.fromtimestamp(clock.now, timezone.utc))
    assert (await bank.tool("whoami", alice, session=theirs)).result["content"] == of[1][0].ref
    await store.close()


@pytest.mark.parametrize("kind", STORES)
async def test_a_principal_has_a_session_of_its_own_in_each(kind: str, tmp_path: Path) -> None:
    """Where no client names one, too."""
    store = STORES[kind](Clock(), tmp_path)
    clients = deployments(store, **{"transport.per_user": True})
    answers = [await client.tool("whoami", by("alice")) for client in clients * 2]
    refs = [answer.result["content"] for answer in answers]
    assert refs[:2] == refs[2:]
    assert len({*refs}) == 2
    await store.close()


async def test_each_deployment_has_its_own_room_in_memory() -> None:
    """For records, data and revocations; the part that is kept for principals is its own, too."""
    store = MemoryStore(max_sessions=10, max_data_bytes=1900, max_entries=1, clock=Clock())
    alice = by("alice")
    for client in deployments(store):
        assert [await kept(client) for _ in range(2)] == ["kept", "store full"]
        *_, held, last = [await client.create() for _ in range(7)]
        assert (await client.send("sessions/create")).status == 503
        assert await kept(client, alice) == "kept"
        assert (await client.send("sessions/create", None, alice)).status == 503
        assert [(await client.delete(one)).status for one in (held, last)] == [200, 503]
