"""New sessions: each is another, nobody has too many, and what comes to nothing leaves nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from clients import Clock
from failing import Failing
from living import ALICE, PARAMS, SCOPE, mint, named, options_of, reopen
from starlette.types import Scope

from mcp_sessions._errors import CreateRefused, Refusal, StoreUnavailable
from mcp_sessions._server.options import HOUR
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions._session.events import SessionEvent
from mcp_sessions._session.session import Session
from mcp_sessions.stores._memory import MemoryStore


async def test_what_cannot_be_recorded_is_not_made() -> None:
    """Nothing that the hook would have made has to be freed, since it did not run."""
    ran, store = list[str](), Failing("register")
    options = options_of(
        Clock(), store=store, tracked=True, on_create=lambda session, params, scope: ran.append(session.ref)
    )
    with pytest.raises(StoreUnavailable):
        await mint(options)
    assert ran == []
    store.failing.clear()
    ref = (await mint(options)).session.ref
    assert ran == [ref]


class TestOnCreate:
    async def test_it_may_fill_the_state_and_the_data(self) -> None:
        """It is told what the caller asked for, and the request that asks."""
        told: list[object] = []

        async def on_create(session: Session, params: dict[str, Any], scope: Scope) -> None:
            told.extend([session.principal, params, scope])
            session.state["plan"] = params["plan"]
            await session.data.set("credits", 3)

        options = options_of(Clock(), on_create=on_create)
        opened = await reopen(named(await mint(options, ALICE)), options, ALICE)
        assert told == [ALICE, PARAMS, SCOPE]
        assert opened.session.state == {"plan": "free"}
        assert await opened.session.data.get("credits") == 3

    async def test_it_may_be_any_object_that_is_called_and_awaited(self) -> None:
        class Hook:
            ran: str | None = None

            async def __call__(self, session: Session, params: dict[str, Any], scope: Scope) -> None:
                await checkpoint()
                self.ran = session.ref

        hook = Hook()
        for on_create in (hook, partial(hook)):
            assert (await mint(options_of(Clock(), on_create=on_create))).session.ref == hook.ran

    @pytest.mark.parametrize("tracked", [True, False])
    @pytest.mark.parametrize("error", [CreateRefused("no more"), StoreUnavailable(), LookupError()])
    async def test_what_it_refuses_was_never_there(
        self, tracked: bool, error: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        """No data, no record and no fact is left, and `on_end` has nothing to free. A bug stands in the log."""
        clock, facts, ended, refused = Clock(), list[SessionEvent](), list[str](), list[Session]()
        store = MemoryStore(clock=clock)

        async def on_create(session: Session, params: dict[str, Any], scope: Scope) -> None:
            await session.data.set("browser", 7)
            refused.append(session)
            raise error

        options = options_of(
            clock,
            store=store,
            tracked=tracked,
            on_create=on_create,
            on_end=lambda session, reason: ended.append(reason),
            listen=facts.append,
        )
        is_bug = isinstance(error, LookupError)
        with pytest.raises(Refusal if is_bug else type(error)):
            await mint(options)
        assert (f"on_create of session {refused[0].ref} raised LookupError" in caplog.text) is is_bug
        assert await refused[0].data.get("browser") is None
        assert await store.get(refused[0].ref) is None
        clock.now += 10 * HOUR
        assert await store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=60, limit=10) == []
        assert (facts, ended) == ([], [])

    async def test_a_caller_who_leaves_leaves_nothing_behind(self) -> None:
        """What was kept is forgotten, even though the request is being cancelled."""
        inside, store, made = anyio.Event(), MemoryStore(), list[Session]()

        async def on_create(session: Session, params: dict[str, Any], scope: Scope) -> None:
            await session.data.set("browser", 7)
            made.append(session)
            inside.set()
            await anyio.sleep_forever()

        options = options_of(Clock(), store=store, on_create=on_create)
        async with anyio.create_task_group() as group:
            group.start_soon(mint, options)
            await inside.wait()
            group.cancel_scope.cancel()
        assert await made[0].data.get("browser") is None
