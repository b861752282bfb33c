"""The dialects that a deployment opted for, as one: what a message says in them, and where they disagree.

`_meta` goes before the top-level field, and that before the header; two that name different sessions are
refused. Nothing here verifies a session or writes an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError, SessionNotFound
from ..jsonrpc import Message
from ..protocol import Subject
from .draft import Named
from .field import agreed, field
from .sep1364_create import SEP1364Create
from .sep1364_initialize import SEP1364Initialize

Dialect = SEP1364Create | SEP1364Initialize


@dataclass(frozen=True, slots=True)
class Opted:
    """The dialects beside the draft and the transport header.

    Args:
        creates: SEP-1364's first alternative, or None.
        initializes: Its second, or None.
    """

    creates: SEP1364Create | None
    initializes: SEP1364Initialize | None

    @classmethod
    def of(cls, option: Any) -> Opted:
        """The checked form of the option `dialects=`.

        Raises:
            ConfigurationError: It is no sequence of dialects, or names one twice; the message says what to write.
        """
        if isinstance(option, Sequence) and all(isinstance(one, Dialect) for one in option):
            creates = [one for one in option if isinstance(one, SEP1364Create)]
            initializes = [one for one in option if isinstance(one, SEP1364Initialize)]
            if len(creates) <= 1 and len(initializes) <= 1:
                return cls(next(iter(creates), None), next(iter(initializes), None))
        raise ConfigurationError(
            f"dialects={option!r} must name each dialect once, as in dialects=[SEP1364Create(), SEP1364Initialize()];"
            " the draft and the transport header need no naming"
        )

    @property
    def is_sessionless(self) -> bool:
        """Whether a message that names a session in these dialects is refused for that."""
        return self.initializes is not None and self.initializes.sessionless

    def named(self, message: Message, in_meta: Named | None) -> Named | None:
        """The session that a message names, in `_meta` or in the ways of these dialects.

        Args:
            message: What came.
            in_meta: What the draft's metadata names, or None.

        Raises:
            FieldNotString: A `sessionId` is neither a string nor null.
            SessionFieldMismatch: Two places name different sessions.
            SessionNotFound: This server uses no sessions.
        """
        said = self.said(message)
        if said is not None and self.is_sessionless:
            raise SessionNotFound("sessionless")
        if in_meta is None:
            return None if said is None else Named(said, None)
        agreed(in_meta.session_id, said)
        return in_meta

    def said(self, message: Message) -> str | None:
        """The session that a message names in the ways of these dialects, or None.

        Raises:
            FieldNotString: A `sessionId` is neither a string nor null.
            SessionFieldMismatch: Two places name different sessions.
        """
        within = [dialect.named(message) for dialect in (self.creates, self.initializes) if dialect is not None]
        return agreed(field(message), *within)

    def subject(self, message: Message) -> Subject | None:
        """What a message is about, where one of these dialects says so."""
        about = [dialect.subject(message) for dialect in (self.creates, self.initializes) if dialect is not None]
        return next(filter(None, about), None)

    def requires(self, message: Message, about: Subject) -> bool:
        """Whether a message must name a session."""
        return self.creates is not None and self.creates.requires(message, about)
