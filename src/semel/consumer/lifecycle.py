"""The lifecycle of one message in a consumer: states, events, and actions. No I/O, no clock, no threads.

The rules that this table keeps:
1. A message is deleted only after the ledger has its outcome: recorded by us, or found recorded on arrival.
2. The heartbeat stops before the message is deleted, hidden for a retry, or made visible again.
3. A claim is released before its message is visible to others, so that they need not wait for the lease.
4. A message that was not started is dropped when its visibility timeout or its claim may be lost. A handler that runs
   goes on, and if it succeeds, its outcome is recorded, however long that takes: the fence decides whether the claim
   was lost.
5. Every message reaches one of the ends, and frees its slot exactly once.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Final


class State(IntEnum):
    RECEIVED = 0  # the heartbeat keeps it hidden from others; the ledger has not been asked, or has not answered
    DISPUTED = auto()  # its key is known with another payload: to be claimed under its own id, and rejected
    CLAIMED = auto()  # ours, and waiting for a free worker or for its turn in its group
    WORKING = auto()  # the handler runs
    DONE = auto()  # the handler returned; the record is under way
    REJECTED = auto()  # to be copied to the dead-letter queue
    DEAD_LETTERED = auto()  # copied there; the record is under way
    RECORDED = auto()  # the ledger has its outcome; to be deleted
    LOST_AT_WORK = auto()  # the claim may be lost: the handler was notified, and still runs
    # The ends.
    ACKED = auto()  # deleted; if that failed, the next delivery is deleted as a duplicate
    CLAIMED_ELSEWHERE = auto()  # another worker has claimed the key: hidden for the rest of its lease
    BACKING_OFF = auto()  # failed: hidden until its next attempt
    RELEASED = auto()  # not started: made visible again at once
    LOST = auto()  # another worker may have it by now: it is left alone


class Event(IntEnum):
    WON = 0  # the claim is ours
    FOUND_DONE = auto()  # the ledger has its outcome already
    HELD = auto()  # another holder has the key
    CONFLICT = auto()  # the key is known with another payload
    LEDGER_DOWN = auto()  # the ledger does not answer
    STARTED = auto()  # a worker starts the handler
    SUCCEEDED = auto()  # the handler returned, or asked to skip the message
    COMMITTED = auto()  # the handler's transaction committed, with the record in it
    FAILED = auto()  # the handler raised, or asked to be called again
    REFUSED = auto()  # never to be tried again: rejected by the handler, undecodable, without a key, out of attempts
    DEAD_LETTERED = auto()  # its copy is in the dead-letter queue
    DLQ_FAILED = auto()  # there is no dead-letter queue, or it did not take the copy
    RECORDED = auto()  # the ledger has recorded the outcome
    FENCED = auto()  # the ledger refused: a newer claim exists
    LOST = auto()  # the claim may be lost: the ledger refused to extend it, or did not confirm it in time
    VISIBLE = auto()  # others may see it: its visibility timeout ended, or could not be extended in time
    GIVE_UP = auto()  # not started, or rolled back, and not to be started here: shutdown, or its group is blocked
    ABANDONED = auto()  # its handler was cancelled by the shutdown, and has ended
    DELETED = auto()  # it was deleted, or the delete has failed and is not worth another try


class Action(IntEnum):
    CLAIM_APART = 0  # ask the ledger again, under the message's own id
    DEAD_LETTER = auto()  # copy it to the dead-letter queue
    RECORD = auto()  # record it as done
    RECORD_REJECTED = auto()
    NOTIFY_LOST = auto()  # notify the handler that it may have lost its claim
    STOP_BEAT = auto()
    GIVE_BACK = auto()  # release the claim; the attempt counts
    GIVE_BACK_UNTRIED = auto()  # release the claim; the attempt does not count
    DELETE = auto()
    HIDE_FOR_LEASE = auto()  # until the other holder's lease is over
    HIDE_FOR_RETRY = auto()
    SHOW = auto()
    END = auto()  # free the slot


_S, _E, _A = State, Event, Action
_DELETE: Final = (_A.STOP_BEAT, _A.DELETE, _A.END)
_WAIT_FOR_LEASE: Final = (_A.STOP_BEAT, _A.HIDE_FOR_LEASE, _A.END)
_BACK_OFF: Final = (_A.STOP_BEAT, _A.HIDE_FOR_RETRY, _A.END)
_RETRY: Final = (_A.STOP_BEAT, _A.GIVE_BACK, _A.HIDE_FOR_RETRY, _A.END)
_RETRY_UNTRIED: Final = (_A.STOP_BEAT, _A.GIVE_BACK_UNTRIED, _A.HIDE_FOR_RETRY, _A.END)
_RELEASE: Final = (_A.STOP_BEAT, _A.GIVE_BACK_UNTRIED, _A.SHOW, _A.END)
_LET_GO: Final = (_A.STOP_BEAT, _A.GIVE_BACK, _A.END)
_LET_GO_UNTRIED: Final = (_A.STOP_BEAT, _A.GIVE_BACK_UNTRIED, _A.END)
_DROP: Final = (_A.STOP_BEAT, _A.END)

Next = tuple[State, tuple[Action, ...]]

TRANSITIONS: Final[dict[tuple[State, Event], Next]] = {
    (_S.RECEIVED, _E.WON): (_S.CLAIMED, ()),
    (_S.RECEIVED, _E.FOUND_DONE): (_S.RECORDED, _DELETE),
    (_S.RECEIVED, _E.HELD): (_S.CLAIMED_ELSEWHERE, _WAIT_FOR_LEASE),
    (_S.RECEIVED, _E.CONFLICT): (_S.DISPUTED, (_A.CLAIM_APART,)),
    (_S.RECEIVED, _E.LEDGER_DOWN): (_S.BACKING_OFF, _BACK_OFF),
    (_S.RECEIVED, _E.GIVE_UP): (_S.RELEASED, (_A.STOP_BEAT, _A.SHOW, _A.END)),
    (_S.RECEIVED, _E.VISIBLE): (_S.LOST, _DROP),
    #
    (_S.DISPUTED, _E.WON): (_S.REJECTED, (_A.DEAD_LETTER,)),
    (_S.DISPUTED, _E.FOUND_DONE): (_S.RECORDED, _DELETE),
    (_S.DISPUTED, _E.HELD): (_S.CLAIMED_ELSEWHERE, _WAIT_FOR_LEASE),
    (_S.DISPUTED, _E.LEDGER_DOWN): (_S.BACKING_OFF, _BACK_OFF),
    (_S.DISPUTED, _E.GIVE_UP): (_S.RELEASED, (_A.STOP_BEAT, _A.SHOW, _A.END)),
    (_S.DISPUTED, _E.VISIBLE): (_S.LOST, _DROP),
    #
    (_S.CLAIMED, _E.STARTED): (_S.WORKING, ()),
    (_S.CLAIMED, _E.SUCCEEDED): (_S.DONE, (_A.RECORD,)),
    (_S.CLAIMED, _E.REFUSED): (_S.REJECTED, (_A.DEAD_LETTER,)),
    (_S.CLAIMED, _E.GIVE_UP): (_S.RELEASED, _RELEASE),
    (_S.CLAIMED, _E.LOST): (_S.LOST, _LET_GO_UNTRIED),
    (_S.CLAIMED, _E.VISIBLE): (_S.LOST, _LET_GO_UNTRIED),
    #
    (_S.WORKING, _E.SUCCEEDED): (_S.DONE, (_A.RECORD,)),
    (_S.WORKING, _E.COMMITTED): (_S.RECORDED, _DELETE),
    (_S.WORKING, _E.FAILED): (_S.BACKING_OFF, _RETRY),
    (_S.WORKING, _E.REFUSED): (_S.REJECTED, (_A.DEAD_LETTER,)),
    (_S.WORKING, _E.LEDGER_DOWN): (_S.BACKING_OFF, _RETRY_UNTRIED),
    (_S.WORKING, _E.FENCED): (_S.LOST, _DROP),
    (_S.WORKING, _E.ABANDONED): (_S.RELEASED, (_A.STOP_BEAT, _A.GIVE_BACK, _A.SHOW, _A.END)),
    (_S.WORKING, _E.GIVE_UP): (_S.RELEASED, _RELEASE),
    (_S.WORKING, _E.LOST): (_S.LOST_AT_WORK, (_A.NOTIFY_LOST,)),
    (_S.WORKING, _E.VISIBLE): (_S.WORKING, ()),  # whoever receives it finds it claimed
    #
    # The effect has happened and the record is under way. While the ledger does not answer, nobody else can claim it.
    (_S.DONE, _E.RECORDED): (_S.RECORDED, _DELETE),
    (_S.DONE, _E.FENCED): (_S.LOST, _DROP),
    (_S.DONE, _E.LOST): (_S.DONE, ()),
    (_S.DONE, _E.VISIBLE): (_S.DONE, ()),
    #
    (_S.REJECTED, _E.DEAD_LETTERED): (_S.DEAD_LETTERED, (_A.RECORD_REJECTED,)),
    (_S.REJECTED, _E.DLQ_FAILED): (_S.BACKING_OFF, _RETRY),
    (_S.REJECTED, _E.LOST): (_S.REJECTED, ()),
    (_S.REJECTED, _E.VISIBLE): (_S.REJECTED, ()),
    (_S.DEAD_LETTERED, _E.RECORDED): (_S.RECORDED, _DELETE),
    (_S.DEAD_LETTERED, _E.FENCED): (_S.LOST, _DROP),
    (_S.DEAD_LETTERED, _E.LOST): (_S.DEAD_LETTERED, ()),
    (_S.DEAD_LETTERED, _E.VISIBLE): (_S.DEAD_LETTERED, ()),
    #
    # Its slot and its claim are kept until the handler has ended.
    (_S.LOST_AT_WORK, _E.SUCCEEDED): (_S.DONE, (_A.RECORD,)),
    (_S.LOST_AT_WORK, _E.COMMITTED): (_S.RECORDED, _DELETE),
    (_S.LOST_AT_WORK, _E.FAILED): (_S.LOST, _LET_GO),
    (_S.LOST_AT_WORK, _E.REFUSED): (_S.LOST, _LET_GO),
    (_S.LOST_AT_WORK, _E.LEDGER_DOWN): (_S.LOST, _LET_GO),
    (_S.LOST_AT_WORK, _E.ABANDONED): (_S.LOST, _LET_GO),
    (_S.LOST_AT_WORK, _E.FENCED): (_S.LOST, _DROP),
    (_S.LOST_AT_WORK, _E.GIVE_UP): (_S.LOST, _LET_GO_UNTRIED),
    (_S.LOST_AT_WORK, _E.LOST): (_S.LOST_AT_WORK, ()),
    (_S.LOST_AT_WORK, _E.VISIBLE): (_S.LOST_AT_WORK, ()),
    #
    (_S.RECORDED, _E.DELETED): (_S.ACKED, ()),
    (_S.RECORDED, _E.LOST): (_S.RECORDED, ()),
    (_S.RECORDED, _E.VISIBLE): (_S.RECORDED, ()),
    #
    # The ledger's answer came after the message had ended: release the claim, as nobody should wait for it.
    (_S.LOST, _E.WON): (_S.LOST, (_A.GIVE_BACK_UNTRIED,)),
    (_S.RELEASED, _E.WON): (_S.RELEASED, (_A.GIVE_BACK_UNTRIED,)),
}

ENDS: Final = frozenset({_S.ACKED, _S.CLAIMED_ELSEWHERE, _S.BACKING_OFF, _S.RELEASED, _S.LOST})
# The claim is ours: the heartbeat extends its lease too.
LEASED: Final = frozenset({_S.CLAIMED, _S.WORKING, _S.LOST_AT_WORK, _S.DONE, _S.REJECTED, _S.DEAD_LETTERED})
# Kept hidden by the heartbeat.
BEATING: Final = LEASED | {_S.RECEIVED, _S.DISPUTED}
# Events that may still arrive when a message has ended; they change nothing.
LATE: Final = frozenset(
    {_E.LOST, _E.VISIBLE, _E.GIVE_UP, _E.DELETED, _E.FOUND_DONE, _E.HELD, _E.CONFLICT, _E.LEDGER_DOWN}
)

# The same table by number: a lookup by a pair of enums costs more than the step itself.
TABLE: Final[list[list[Next | None]]] = [[TRANSITIONS.get((state, event)) for event in Event] for state in State]


class ImpossibleStep(AssertionError):
    """An event that cannot happen in this state: a bug in the runtime, never a mistake of a user."""


def step(state: State, event: Event) -> Next:
    """The next state, and the actions to take, in order."""
    transition = TABLE[state][event]
    if transition is None:
        if state in ENDS and event in LATE:
            return state, ()
        raise ImpossibleStep(f"{event.name} cannot happen to a message that is {state.name}")
    return transition
