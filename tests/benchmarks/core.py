"""The pure core alone, and the least that its work can cost.

The core is what the middleware does between the bytes of a request and those of its answer: it parses the message,
finds and verifies the session, decides, and splices the session into the answer. The limit does the same for one
request whose form it knows in advance: a bare HMAC, a search and a concatenation, with no check of anything.
"""

from __future__ import annotations

import hmac
import time
from typing import Final

from mcp_sessions._protocol import decision, draft, jsonrpc, rewrite
from mcp_sessions._protocol.decision import SUBJECTS, Rules, Step
from mcp_sessions._protocol.headers import RequestHeaders
from mcp_sessions._protocol.jsonrpc import Message
from mcp_sessions._protocol.policy import Policy
from mcp_sessions._tokens.jwt import Tokens

from . import ours
from .traffic import SESSION_KEY, message

_ANSWER: Final = b'{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"how much is the fish?"}]}}'
_MEMBER: Final = f',"_meta":{{"{SESSION_KEY}":'.encode()


class Core:
    """One request after the other through the core, with the same session, verified before."""

    def __init__(self) -> None:
        self.token = ours.minted(1)[0]
        self.body = message(session={"sessionId": self.token})
        self._tokens = Tokens(issuer=ours.NAMES, audience=ours.NAMES)
        self._now = time.time()
        self._headers = RequestHeaders.of([])
        self._rules = Rules.of(
            policy=Policy("never"),
            subjects=SUBJECTS,
            lists=None,
            legacy_only=False,
            fail_open=False,
            reads_transport=True,
            bridges=False,
            kind_of=lambda token: self._tokens.kind(ours.RING, token),
            sep1364=None,
            inspects_all=False,
        )

    def __call__(self) -> bytes | None:
        """The answer with the session in it."""
        parsed = jsonrpc.parse(self.body)
        assert isinstance(parsed, Message)
        decided = decision.decide(parsed, self._headers, self._rules)
        named = decided.metadata
        assert named is not None
        assert decided.step is Step.ATTACH
        claims = self._tokens.verify(ours.RING, named.session_id, now=self._now, principal=None)
        return rewrite.echo(_ANSWER, parsed.id or b"", lambda: draft.without_state(named.session_id, claims.expires_at))


class Limit:
    """The same, blindly."""

    def __init__(self, core: Core) -> None:
        self._body = core.body
        self._session = draft.without_state(core.token, 0)

    def __call__(self) -> bytes:
        """An answer with a session in it."""
        begin = self._body.find(b'"sessionId":"') + 13
        token = self._body[begin : self._body.find(b'"', begin)]
        signed, _, signature = token.rpartition(b".")
        hmac.compare_digest(hmac.digest(b"a key of 32 bytes, not the real one", signed, "sha256"), signature)
        return b"".join((_ANSWER[:-2], _MEMBER, self._session, b"}}}"))
