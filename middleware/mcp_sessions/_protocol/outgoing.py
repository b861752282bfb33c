"""The sending side of a response as a table: what leaves, what waits, and how the response is cut if its session ends.

Two tasks take part: that of the application, which sends, and one that cuts. Nothing of the application leaves after a
cut, and what ends the response leaves once, when nothing else is on its way. The state has to be read again after every
await, which is why each step asks the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from .._session.claims import RedactedRepr

# Plain strings: a member of an enum costs more to look up than all else here.
State = Literal["waiting", "hinting", "refusing", "refused", "passing", "sending", "ending", "ended", "done"]
WAITING: Final = "waiting"  # nothing of the response has left; its start may be held
HINTING: Final = "hinting"  # so too, but something that precedes a response is on its way, such as early hints
REFUSING: Final = "refusing"  # cut while hinting
REFUSED: Final = "refused"  # cut, and answered by a refusal in place of the response
PASSING: Final = "passing"  # a part has left
SENDING: Final = "sending"  # a part is on its way
ENDING: Final = "ending"  # cut while sending
ENDED: Final = "ended"  # cut after a part has left
DONE: Final = "done"  # the application has ended it

Event = Literal["hold", "hint", "send", "sent", "sent_last", "failed", "cut"]
HOLD: Final = "hold"  # the application sends a part that has to wait
HINT: Final = "hint"  # the application sends something that is no part of the response
SEND: Final = "send"  # the application sends a part that leaves at once, behind those that wait
SENT: Final = "sent"  # what was on its way has left
SENT_LAST: Final = "sent_last"  # so has the last part
FAILED: Final = "failed"  # what was on its way was not accepted; the application may go on all the same
CUT: Final = "cut"  # the session has ended, or the answer is refused

Action = Literal["keep", "forward", "drop", "refuse", "end", "nothing"]
KEEP: Final = "keep"  # the part, until others leave
FORWARD: Final = "forward"  # send it now
DROP: Final = "drop"  # forget it
REFUSE: Final = "refuse"  # send a refusal as the response
END: Final = "end"  # send the end of the response
NOTHING: Final = "nothing"

_SENT: Final[tuple[Event, ...]] = (SENT, SENT_LAST, FAILED)
# Some applications send in several tasks at once, so what is sent may also arrive when another part has.
_AFTER_CUT: Final[dict[Event, Action]] = {
    **dict.fromkeys((HOLD, HINT, SEND, CUT), DROP),
    **dict.fromkeys(_SENT, NOTHING),
}

TABLE: Final[Mapping[State, Mapping[Event, tuple[State, Action]]]] = {
    WAITING: {
        HOLD: (WAITING, KEEP),
        HINT: (HINTING, FORWARD),
        SEND: (SENDING, FORWARD),
        SENT: (WAITING, NOTHING),
        SENT_LAST: (DONE, NOTHING),
        FAILED: (WAITING, NOTHING),
        CUT: (REFUSED, REFUSE),
    },
    HINTING: {
        HOLD: (HINTING, KEEP),
        HINT: (HINTING, FORWARD),
        SEND: (SENDING, FORWARD),
        SENT: (WAITING, NOTHING),
        SENT_LAST: (DONE, NOTHING),
        FAILED: (WAITING, NOTHING),
        CUT: (REFUSING, NOTHING),
    },
    REFUSING: {
        HOLD: (REFUSING, DROP),
        HINT: (REFUSING, DROP),
        SEND: (REFUSING, DROP),
        SENT: (REFUSED, REFUSE),
        SENT_LAST: (DONE, NOTHING),
        FAILED: (REFUSED, NOTHING),
        CUT: (REFUSING, DROP),
    },
    REFUSED: {event: (REFUSED, action) for event, action in _AFTER_CUT.items()},
    PASSING: {
        HINT: (SENDING, FORWARD),
        SEND: (SENDING, FORWARD),
        SENT: (PASSING, NOTHING),
        SENT_LAST: (DONE, NOTHING),
        FAILED: (PASSING, NOTHING),
        CUT: (ENDED, END),
    },
    SENDING: {
        HINT: (SENDING, FORWARD),
        SEND: (SENDING, FORWARD),
        SENT: (PASSING, NOTHING),
        SENT_LAST: (DONE, NOTHING),
        FAILED: (PASSING, NOTHING),
        CUT: (ENDING, NOTHING),
    },
    ENDING: {
        HOLD: (ENDING, DROP),
        HINT: (ENDING, DROP),
        SEND: (ENDING, DROP),
        SENT: (ENDED, END),
        SENT_LAST: (DONE, NOTHING),
        FAILED: (ENDED, NOTHING),
        CUT: (ENDING, DROP),
    },
    ENDED: {event: (ENDED, action) for event, action in _AFTER_CUT.items()},
    DONE: {  # trailers, for example, follow the last part
        **dict.fromkeys((HINT, SEND), (DONE, FORWARD)),
        **dict.fromkeys(_SENT, (DONE, NOTHING)),
        CUT: (DONE, DROP),
    },
}
"""What follows an event in a state. A part is held only while nothing has left."""

UNSENT: Final = frozenset({WAITING, HINTING, REFUSING, REFUSED})  # no part was sent, or is on its way
CUT_OFF: Final = frozenset({REFUSING, REFUSED, ENDING, ENDED})  # nothing more of the application leaves
OVER: Final = CUT_OFF | {DONE}  # nothing remains to be cut


class Outgoing(RedactedRepr, msgspec.Struct, eq=False):
    """The state of one response."""

    state: State = WAITING

    def on(self, event: Event) -> Action:
        """Move to the next state, and return what to do."""
        self.state, action = TABLE[self.state][event]
        return action
