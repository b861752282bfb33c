"""Taking over a bridged session whose worker is gone: the wrapped server gets the `initialize` of its client again.

The store has the params of that `initialize`, never its headers, which hold credentials: the server is asked with those
of the present request. The session is claimed before anything is replayed, so that no two workers replay it, and the
server's new transport session is ended again if the takeover fails. What is restored beside it is the log level and the
subscriptions to resources.
"""

from __future__ import annotations

import hmac
import json
import logging
from contextlib import suppress
from typing import Any, Final

import anyio
import msgspec

from .._affinity.incoming import LOST, Takeover
from .._affinity.ownership import Ownership
from .._errors import DataError, Refusal, SessionNotFound, StoreUnavailable
from .._protocol import rewrite
from .._protocol.headers import VERSION, edit
from .._protocol.methods import INITIALIZE, INITIALIZED
from .._protocol.rewrite import Answer
from .._protocol.strict_json import NULL, join, last_members, string
from .._refusals import refusal
from .._server.answers import ResponseRecorder, end_upstream, probe_app, probe_scope
from .._server.body import replay
from .._server.context import Request, params_of
from .._server.logs import log_extra
from .._server.response import Change, Response
from .._server.runtime import Runtime
from .._session.claims import Claims, RedactedRepr, ref_of
from .._session.data import Namespace
from .._session.session import Session
from .._tokens import seal
from .._tokens.keys import Key, base64url
from .._tokens.seal import Upstream
from ..stores._base import ANONYMOUS
from .crossing import CROSSING, Crossing

REPLAY: Final = "mcp_sessions.replay"  # in the scope of an `initialize` that is replayed
MAX_PARAMS: Final = 1 << 16
_PASSED_ON: Final = frozenset({401, 403, 429})  # statuses with which a server refuses a caller, not a session
_RETRY_AFTER: Final = 5  # seconds
_log: Final = logging.getLogger("mcp_sessions")


async def store_params(request: Request, key: Key, expires_at: int) -> str:
    """Store the params of an `initialize`, and return the name under which they are found, or "" if they are not."""
    runtime, params = request.runtime, dict(request.current_message.all_params)
    params.pop("_meta", None)
    value = join(params)
    assert key.hop_key is not None, "it signs"
    name = base64url(hmac.digest(key.hop_key, b"initialize" + value, "sha256")[:16])
    known = runtime.known_params
    if known.get(name, 0) >= expires_at:
        return name
    if len(value) > MAX_PARAMS:
        _log.warning("the params of initialize are too large to be kept: the session ends with this process")
        return ""
    lasts = expires_at + 86_400  # so that they are written once a day
    subject = key.subject(request.principal)
    try:
        await runtime.store.write(_place(runtime, name, lasts, subject), "", value)
    except (StoreUnavailable, DataError) as error:
        _log.warning("the params of initialize were not kept (%s): the session ends with this process", error)
        return ""
    if len(known) > 1000:
        known.clear()
    known[name] = lasts
    return name


def _place(runtime: Runtime, name: str, expires_at: int = 0, subject: str | None = None) -> Namespace:
    place = runtime.namespace(ref_of(f"initialize/{name}/{runtime.audience}"), expires_at, subject)
    return msgspec.structs.replace(place, subject=subject or ANONYMOUS)


async def take_over(request: Request, session: Session, upstream: Upstream) -> Ownership:
    """Own a session whose owner is gone.

    Raises:
        Refusal: That is not possible now, or the server does not begin the session again.
    """
    takeover: Takeover | None = request.scope.get(LOST)
    if takeover is None or takeover.is_over:
        raise (None if takeover is None else takeover.refusal) or _unreachable(session)
    try:
        return await _take_over(request, session, upstream, takeover)
    except Refusal as error:
        takeover.refusal = error
        raise


async def begin_again(request: Request, session: Session) -> Ownership | None:
    """Begin the transport session of a session again, since the server itself has forgotten it; None if it may not."""
    affinity, upstream = request.runtime.affinity, seal.open_upstream(session._key, session._claims)
    if affinity is None or upstream is None or not upstream.owner or not affinity.may_begin_again(session.ref):
        return None
    old = affinity.owners.known(session._claims, upstream)
    with suppress(Refusal):
        return await _take_over(request, session, upstream, Takeover(old))
    return None


async def _take_over(request: Request, session: Session, upstream: Upstream, takeover: Takeover) -> Ownership:
    runtime, claims, affinity = request.runtime, session._claims, request.runtime.affinity
    assert affinity is not None, "the request is marked by it"
    params = None if not upstream.params else await runtime.store.read(_place(runtime, upstream.params), "")
    if params is None:
        _log.warning(
            "session %s cannot be taken over: its initialize was not kept", claims.ref, extra=log_extra(claims.ref)
        )
        raise _lost(claims.ref)
    taking = await affinity.owners.claim(claims, takeover.old)
    if taking is None:
        takeover.has_rival = True
        await affinity.owners.read(claims, upstream)
        raise _unreachable(session)
    server_id, ownership = "", None
    try:
        server_id = await _begin_again(request, params, takeover)
        await _restore(request, session, server_id, taking.epoch)
        ownership = await affinity.owners.commit(claims, taking, server_id)
        if ownership is None:
            raise _unreachable(session)
    finally:
        if ownership is None:
            with anyio.CancelScope(shield=True):
                if server_id:
                    await end_upstream(request.app, request.scope, request.receive, server_id)
                await affinity.owners.give_back(claims, taking, takeover.old)
                await affinity.owners.read(claims, upstream)
    _log.info(
        "took over session %s, whose worker is gone (epoch %d)", claims.ref, taking.epoch, extra=log_extra(claims.ref)
    )
    return ownership


def _lost(ref: str | None = None) -> SessionNotFound:
    """Return the refusal that makes a client initialize again."""
    error = SessionNotFound("session_lost", ref=ref)
    error.http_status = 404
    return error


def _unreachable(session: Session) -> Refusal:
    return refusal("owner_unreachable", ref=session.ref, retry_after=_RETRY_AFTER)


async def _begin_again(request: Request, params: bytes, takeover: Takeover) -> str:
    """Replay the `initialize` of a session, and return the id of the server's new transport session."""
    body = join({"jsonrpc": "2.0", "id": "takeover", "method": INITIALIZE, "params": msgspec.Raw(params)})
    question, recorder = probe_scope(request.scope, body), ResponseRecorder(b'"takeover"')
    asked_for = request.headers.first(VERSION)
    question["headers"] = edit(question["headers"], drop=(VERSION,))
    question[REPLAY] = True
    crossing = request.notes[CROSSING] = Crossing(begins=True)
    await probe_app(request.app, question, replay(body, request.receive), recorder)
    if recorder.status in _PASSED_ON:
        takeover.refused = recorder.messages
        raise refusal("owner_unreachable", retry_after=_RETRY_AFTER)
    if not (recorder.succeeded and crossing.server_id):
        raise refusal("owner_unreachable", retry_after=_RETRY_AFTER)
    if asked_for is not None and _version_of(recorder) != asked_for:
        await end_upstream(request.app, request.scope, request.receive, crossing.server_id)
        raise _lost()
    return crossing.server_id


def _version_of(recorder: ResponseRecorder) -> str | None:
    """Return the protocol version of a successful `initialize`."""
    answers = (rewrite.answer(text, recorder.request_id) for text in recorder._texts())
    found = next(answer for answer in answers if answer is not None)
    result = last_members(found.envelope["result"]) if found.result is None else found.result
    return string(result.get("protocolVersion", NULL))


async def _restore(request: Request, session: Session, server_id: str, epoch: int) -> None:
    """Bring the server's new transport session to where the old one was."""
    request.notes[CROSSING] = Crossing(session.id, server_id, epoch=epoch)
    messages: list[dict[str, Any]] = [{"method": INITIALIZED}]
    kept = await request.runtime.store.read(request.runtime.namespace_of(session._claims), KEPT)
    found = Restorable() if kept is None else _RESTORABLE.decode(kept)
    if found.level is not None:
        messages.append({"id": "level", "method": SET_LEVEL, "params": {"level": found.level}})
    messages += [{"id": uri, "method": SUBSCRIBE, "params": {"uri": uri}} for uri in found.uris]
    for message in messages:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        question = probe_scope(request.scope, body)
        await probe_app(request.app, question, replay(body, request.receive), ResponseRecorder(b"null"))


# --- what is restored ---

KEPT: Final = "\0bridge"
SET_LEVEL: Final = "logging/setLevel"
SUBSCRIBE: Final = "resources/subscribe"
UNSUBSCRIBE: Final = "resources/unsubscribe"
SETTINGS: Final = frozenset({SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE})
MAX_URIS: Final = 100
_ATTEMPTS: Final = 5


class Restorable(RedactedRepr, msgspec.Struct):
    """What a client has set in the server's transport session."""

    level: str | None = None
    uris: list[str] = []


_RESTORABLE: Final = msgspec.json.Decoder(Restorable)


class KeepSetting(Change, kw_only=True):
    """What a client has set in the server's transport session, stored once the server has accepted it."""

    session: Session

    async def on_answer(self, answer: Answer, response: Response) -> bytes | None:
        """Store the setting; if the store does not answer, it is lost with the next takeover."""
        request = response.request
        with suppress(StoreUnavailable, DataError):
            await _keep(request.runtime, self.session._claims, request.current_message.method, params_of(request))
        return None


async def _keep(runtime: Runtime, claims: Claims, method: str, params: dict[str, Any]) -> None:
    place = runtime.namespace_of(claims)
    for _ in range(_ATTEMPTS):
        old = await runtime.store.read(place, KEPT)
        kept = Restorable() if old is None else _RESTORABLE.decode(old)
        uri = str(params.get("uri"))
        if method == SET_LEVEL:
            kept.level = str(params.get("level"))
        elif method == UNSUBSCRIBE:
            kept.uris = [one for one in kept.uris if one != uri]
        elif len(kept.uris) < MAX_URIS and uri not in kept.uris:
            kept.uris.append(uri)
        if await runtime.store.compare_and_swap(place, KEPT, old, msgspec.json.encode(kept)):
            return
