"""A lane: one queue, its handler, and the messages of it that are in this process's hands.

The lane knows what each step means: receive, claim, begin, finish, and what follows from an outcome. It owns no thread
and never waits; whoever drives it (threads in `runtime`, one caller in `inline`) takes work from its inboxes. Every
change of a message's state is made here, by the table of `life`, under one lock.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from semel.consumer.backoff import Exponential
from semel.consumer.context import Message, logger
from semel.consumer.delivery import Delivery
from semel.consumer.groups import Groups
from semel.consumer.handlers import Handler
from semel.consumer.inbox import Inbox
from semel.consumer.life import ENDS, Action, Event, State, step
from semel.consumer.settings import Settings
from semel.consumer.slots import Slots
from semel.durations import seconds
from semel.failures import described, is_failure
from semel.ledger.contract import Claim, Ledger, LedgerError
from semel.messages.visibility import visibility_for
from semel.sqs import Cancel
from semel.sqs.errors import AccessDenied, CredentialsRefused, SqsError
from semel.telemetry.attempt_log.log import Attempt, AttemptLog, Step
from semel.telemetry.logs import RateLimitedLog
from semel.telemetry.metrics import Metrics, QueueMetrics

if TYPE_CHECKING:
    from semel.sqs import Queue

# Seconds before the claim's end at which a message counts as lost: nothing is begun so late.
MARGIN: Final = 0.5
BOUNCE_JITTER: Final = 2.0
UNBURIABLE_ATTEMPT: Final = 20  # a message that has nowhere to go waits as one that failed this often

Steps = Iterable[tuple[Delivery, tuple[Action, ...]]]
Settlement = tuple[Delivery, Action, tuple[Action, ...]]


def no_crash(_point: str) -> None:
    pass


@dataclass
class Tools:
    """What the edge of the house gives to every lane: clocks, chance, logs, and in tests the places to die at."""

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random
    metrics: Metrics = field(default_factory=Metrics)
    log: AttemptLog | None = None
    worker: str = "worker"
    crash: Callable[[str], None] = no_crash
    _calls: count[int] = field(default_factory=count)

    def claimant(self) -> str:
        """A name for one claim: no other call, of this or any other worker, bears it."""
        return f"{self.worker}/{next(self._calls)}"


class Lane:
    def __init__(
        self,
        handler: Handler,
        settings: Settings,
        queue: Queue,
        dead_letters: Queue | None,
        ledger: Ledger,
        tools: Tools,
    ) -> None:
        self.handler = handler
        self.settings = settings
        self.queue = queue
        self.dead_letters = dead_letters
        self.ledger = ledger
        self.tools = tools
        self.name = queue.name
        self.scope = queue.scope  # what its keys are kept apart by in the ledger
        self.fifo = queue.fifo
        self.metrics: QueueMetrics = tools.metrics.queue(self.name)
        self.concurrency = settings.concurrency  # as it is now: it can be changed while the lane is at work
        self.slots = Slots(self._slots_for(self.concurrency), settings.max_bytes)
        self.lock = threading.Lock()
        self.in_hand: dict[str, Delivery] = {}  # by message id
        self.groups = Groups()
        # Of a FIFO queue's batches: those that wait for one before them in their group.
        self._waiting: list[Delivery] = []
        self.runnable: Inbox[Delivery] = Inbox()
        self.settling: Inbox[Settlement] = Inbox()
        self.burying: Inbox[Delivery] = Inbox()
        self.deleting: Inbox[Delivery] = Inbox()
        self.hiding: Inbox[tuple[Delivery, int]] = Inbox()
        self.to_be_claimed: Callable[[list[Delivery]], None] = lambda _deliveries: None  # the claimer's ear
        self.arrived: Callable[[list[Delivery]], None] = lambda _deliveries: None  # the heartbeat's ear
        self.ledger_answers: Callable[[bool], None] = lambda _well: None  # the circuit breaker's ear
        self.failed: Callable[[SqsError], None] = lambda _error: None  # the runtime's ear: no retry will mend this
        self.put_back: Callable[[Delivery, float], None] = lambda _delivery, _seconds: (
            None
        )  # it comes again after these
        self.committed: Callable[[], None] = lambda: None  # the outbox's ear: a transaction may have sent something
        self.limited_log = RateLimitedLog(logger, tools.monotonic)  # what could be said again and again
        self.stopping = False
        self.paused = False  # nothing more is received; what is in hand goes on

    def _slots_for(self, concurrency: int) -> int:
        return concurrency * self.settings.size * 2 if self.handler.is_batch else concurrency

    def resize(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.slots.resize(self._slots_for(concurrency))

    # Receiving.

    def receive(self, most: int, *, wait: int, cancel: Cancel | None = None, attempt_id: str | None = None) -> int:
        """Receive and claim up to `most` messages, for which slots were taken. Returns how many came."""
        before = self.tools.monotonic()
        lease = int(self.settings.lease)
        try:
            received = self.queue.receive(most, wait, visibility=lease, attempt_id=attempt_id, cancel=cancel)
        except BaseException:
            self.slots.give(most)
            raise
        if not received:
            self.slots.give(most)
            return 0
        now = self.tools.monotonic()
        # A long poll waits before SQS hands a message over. Should the answer have been longer under way than this
        # allows for, the claim still decides: visibility saves work, it does not protect.
        self.tools.crash("after_receive")
        deliveries = self._take_in(received, before if now - before < 1 else now - 1)
        if unused := most - len(deliveries):
            self.slots.give(unused)
        if not deliveries:
            return len(received)
        self.slots.add_bytes(sum(delivery.size for delivery in deliveries))
        if self.stopping or self.paused:
            self.give_up(deliveries)
        else:
            self.arrived(deliveries)
            self.to_be_claimed(deliveries)
        return len(received)

    def _take_in(self, received: Sequence[Message], since: float) -> list[Delivery]:
        visible_at = since + int(self.settings.lease)
        fresh, held = [], []
        with self.lock:
            for message in received:
                running = self.in_hand.get(message.message_id)
                if running is not None and running.state not in ENDS and not running.is_lost:
                    # SQS has handed out a message that we hold: its newest handle is the one that counts.
                    running.receipt, running.visible_at, running.hidden = message.receipt, visible_at, True
                    twin = Delivery(self, message, since, visible_at)
                    twin.key, twin.key_origin, twin.fence = running.key, running.key_origin, running.fence
                    held.append(twin)
                    continue
                delivery = Delivery(self, message, since, visible_at)
                self.in_hand[message.message_id] = delivery
                fresh.append(delivery)
        self.metrics.received.add(len(received))
        self.metrics.batch_fill.observe(len(received))
        if again := len(held) + sum(1 for delivery in fresh if delivery.received.receive_count > 1):
            self.metrics.delivered_again.add(again)
        self.log(Step.RECEIVED, (*fresh, *held))
        if held:
            self.log(Step.HELD, held)
        return fresh

    # Working.

    def in_turn(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Those of a batch that may be begun together. On a FIFO queue not those behind one of their group that is not
        among them and not recorded yet; they become runnable again when that has ended."""
        if not self.fifo:
            return list(deliveries)
        chosen, turn = set(map(id, deliveries)), set[int]()
        stuck: set[str | None] = set()
        with self.lock:
            for delivery in self.in_hand.values():
                if delivery.group in stuck or delivery.state in ENDS or delivery.state is State.RECORDED:
                    continue
                if id(delivery) in chosen:
                    turn.add(id(delivery))
                else:
                    stuck.add(delivery.group)
            self._waiting += [d for d in deliveries if id(d) not in turn and d.state is State.CLAIMED]
        return [delivery for delivery in deliveries if id(delivery) in turn]

    def begin(self, delivery: Delivery) -> bool:
        """Whether the handler is to be called now. If not, all that follows has been seen to."""
        now = self.tools.monotonic()
        late = now > delivery.deadline - MARGIN
        with self.lock:
            if delivery.state is not State.CLAIMED:
                return False
            if self.stopping and not delivery.problem:
                event = Event.GIVE_UP
            elif late:
                event = Event.LOST
            elif delivery.problem:
                no_key = delivery.problem.startswith("no key")
                skip = no_key and self.settings.missing_key == "skip"
                event = Event.SUCCEEDED if skip else Event.REFUSED
                delivery.error = delivery.problem
            elif self.settings.max_attempts is not None and delivery.attempt > self.settings.max_attempts:
                event = Event.REFUSED
                delivery.error = f"out of attempts: {delivery.attempt - 1} began and none came to an end"
            else:
                event = Event.STARTED
                delivery.started_at = now
            delivery.state, actions = step(delivery.state, event)
        if event is Event.STARTED:
            self.metrics.receive_to_start.observe(now - delivery.received_at)
            self.log(Step.STARTED, (delivery,), now - delivery.received_at)
            return True
        if late and event is Event.LOST:
            self.metrics.heartbeat_lost.add(1)
            self.log(Step.LOST, (delivery,), error="its visibility was about to end before it was begun")
        self._ending(delivery, event)
        self.carry_out(((delivery, actions),))
        return False

    def finish(self, delivery: Delivery, event: Event) -> None:
        """The handler has ended. Decides whether a failure was the last one, and does what follows."""
        self.tools.crash("after_work")
        if event is Event.FAILED and (last := self._last_attempt(delivery)):
            event = Event.REFUSED
            delivery.error = f"{last}: {delivery.error}"
        self.metrics.handler.observe(self.tools.monotonic() - delivery.started_at)
        actions = self.advance(delivery, event)
        self._ending(delivery, event)
        self.carry_out(((delivery, actions),))

    def finish_all(self, deliveries: Sequence[Delivery], event: Event) -> None:
        """As `finish`, for many that ended together."""
        self.tools.crash("after_work")
        spent = self.tools.monotonic() - deliveries[0].started_at
        steps = []
        for delivery in deliveries:
            this = event
            if event is Event.FAILED and (last := self._last_attempt(delivery)):
                this = Event.REFUSED
                delivery.error = f"{last}: {delivery.error}"
            steps.append((delivery, self.advance(delivery, this)))
            self._ending(delivery, this)
        self.metrics.handler.observe(spent)
        self.carry_out(steps)

    def _last_attempt(self, delivery: Delivery) -> str:
        settings = self.settings
        if self.fifo and settings.on_failure == "skip_message":
            return "skipped"
        if settings.max_attempts is not None and delivery.attempt >= settings.max_attempts:
            return "out of attempts"
        if settings.max_receives is not None and delivery.received.receive_count >= settings.max_receives:
            # SQS would move it at its next receive, without a reason.
            return "out of receives"
        return ""

    def _ending(self, delivery: Delivery, event: Event) -> None:
        """Count and log what a handler's end means."""
        spent = self.tools.monotonic() - delivery.started_at if delivery.started_at else 0.0
        if delivery.state in (State.LOST, State.LOST_AT_WORK) and event is not Event.LOST:
            self.metrics.fenced.add(1)
            self.log(Step.FENCED, (delivery,), spent, delivery.error)
        elif event in (Event.FAILED, Event.LEDGER_DOWN):
            self.metrics.retried.add(1)
            self.log(Step.RETRIED, (delivery,), spent, delivery.error)
        elif event is Event.COMMITTED:
            self.metrics.completed.add(1)
            self.log(Step.RECORDED, (delivery,), spent)
        elif event is Event.GIVE_UP or event is Event.ABANDONED:
            self.metrics.released.add(1)
            self.log(Step.RELEASED, (delivery,), spent)

    def lose(self, delivery: Delivery, reason: str) -> None:
        """The claim may be another's by now."""
        with self.lock:
            if delivery.state in ENDS or delivery.is_lost:
                return
            before = delivery.state
            delivery.state, actions = step(delivery.state, Event.LOST)
        if delivery.state is before:
            return  # an outcome is under way: the fence decides
        self._lost(delivery, actions, reason)

    def visibility_lost(self, delivery: Delivery, reason: str) -> None:
        """SQS may show it to others by now."""
        with self.lock:
            if delivery.state in ENDS or not delivery.hidden:
                return
            delivery.hidden = False
            delivery.state, actions = step(delivery.state, Event.VISIBLE)
        goes_on = "" if delivery.state in ENDS else "; its handler goes on, and its lease is extended"
        self._lost(delivery, actions, f"{reason}{goes_on}")

    def _behind(self, delivery: Delivery) -> list[Delivery]:
        """Under the lock: those of its group that came after it, and must not overtake it."""
        if not self.handler.is_batch:
            return self.groups.behind(delivery)
        group = [other for other in self.in_hand.values() if other.group == delivery.group]
        return group[group.index(delivery) + 1 :] if delivery in group else group

    def _lost(self, delivery: Delivery, actions: tuple[Action, ...], reason: str) -> None:
        self.metrics.heartbeat_lost.add(1)
        self.log(Step.LOST, (delivery,), error=reason)
        logger.warning("lost %s of %s: %s", delivery.received.message_id, self.name, reason)
        if delivery.group is not None and delivery.state is State.LOST:
            with self.lock:
                behind = self._behind(delivery)
            self.give_up(behind)  # now, and not when its claim is given back: another may be about to begin
        self.carry_out(((delivery, actions),))

    def give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Hand back what was not begun."""
        steps = []
        for delivery in deliveries:
            with self.lock:
                if delivery.state not in (State.RECEIVED, State.DISPUTED, State.CLAIMED):
                    continue
                delivery.state, actions = step(delivery.state, Event.GIVE_UP)
            self._ending(delivery, Event.GIVE_UP)
            steps.append((delivery, actions))
        self.carry_out(steps)

    # What follows.

    def advance(self, delivery: Delivery, event: Event) -> tuple[Action, ...]:
        with self.lock:
            delivery.state, actions = step(delivery.state, event)
        return actions

    def carry_out(self, steps: Steps) -> None:
        """Hand each action to the one who does it; what must come after a settlement goes with it."""
        settling: list[Settlement] = []
        burying: list[Delivery] = []
        deleting: list[Delivery] = []
        hiding: list[tuple[Delivery, int]] = []
        ended: list[Delivery] = []
        for delivery, actions in steps:
            for place, action in enumerate(actions):
                if action is Action.STOP_BEAT:
                    with self.lock:
                        delivery.stopped = True
                        if delivery.beating:  # its last beat is on the way: the rest is done after it
                            delivery.after_beat = actions[place + 1 :]
                            break
                elif action is Action.DELETE:
                    deleting.append(delivery)
                elif action is Action.END:
                    ended.append(delivery)
                elif action is Action.DEAD_LETTER:
                    burying.append(delivery)
                elif action is Action.TELL:
                    delivery.tell()
                elif action in (Action.HIDE_FOR_RETRY, Action.HIDE_FOR_LEASE, Action.SHOW):
                    hidden_for = self._hidden_for(delivery, action)
                    self.put_back(delivery, hidden_for)
                    hiding.append((delivery, hidden_for))
                else:  # RECORD, RECORD_REJECTED, GIVE_BACK, GIVE_BACK_UNTRIED
                    settling.append((delivery, action, actions[place + 1 :]))
                    break
        if settling:
            self.settling.put(settling)
        if burying:
            self.burying.put(burying)
        if deleting:
            self.deleting.put(deleting)
        if hiding:
            self.hiding.put(hiding)
        if ended:
            self._end(ended)

    def _hidden_for(self, delivery: Delivery, action: Action) -> int:
        if action is Action.SHOW:
            return 0
        if action is Action.HIDE_FOR_LEASE:
            delay = delivery.held_for + self.tools.chance() * BOUNCE_JITTER
        elif delivery.retry_after is not None:
            delay = delivery.retry_after
        else:
            delay = self.delay(max(1, delivery.attempt), self.tools.chance())
        return visibility_for(delay, self.tools.monotonic() - delivery.received_at)

    def delay(self, attempt: int, chance: float) -> float:
        """By the handler's back-off; by the default one where that is somebody's own and does not work."""
        try:
            return seconds(self.settings.retry.delay(attempt, chance))
        except BaseException as error:
            if not is_failure(error):
                raise
            self.limited_log.error(
                "retry", "the back-off of %s does not work, the default is used: %s", self.name, described(error)
            )
            return Exponential().delay(attempt, chance)

    def _end(self, ended: Sequence[Delivery]) -> None:
        ready: list[Delivery] = []
        blocked: list[Delivery] = []
        with self.lock:
            for delivery in ended:
                if delivery.group is not None:
                    if delivery.state in (State.RECORDED, State.ACKED):
                        ready += [d for d in self._waiting if d.group == delivery.group]
                        self._waiting = [d for d in self._waiting if d.group != delivery.group]
                    else:
                        behind = self._behind(delivery)
                        blocked += behind
                        self._waiting = [d for d in self._waiting if d is not delivery and d not in behind]
                    if (following := self.groups.ended(delivery)) is not None:
                        ready.append(following)
                if self.in_hand.get(delivery.received.message_id) is delivery:
                    del self.in_hand[delivery.received.message_id]
        self.slots.give(len(ended), sum(delivery.size for delivery in ended))
        if ready:
            self.runnable.put(ready)
        if blocked:
            self.give_up(blocked)

    # Logs.

    def log(self, what: Step, deliveries: Iterable[Delivery], seconds: float = 0.0, error: str = "") -> None:
        log = self.tools.log
        if log is None:
            return
        at, name, lease, handler = self.tools.now(), self.name, self.settings.lease, self.handler.name
        log.add_all(
            [
                Attempt(
                    at=at,
                    step=what,
                    queue=name,
                    message_id=d.received.message_id,
                    key=d.key,
                    fence=d.fence,
                    attempt=d.attempt,
                    receive_count=d.received.receive_count,
                    sent_at=d.received.sent_at or 0.0,
                    group=d.group or "",
                    seconds=seconds,
                    visibility=lease,
                    error=error,
                    key_origin=d.key_origin,
                    handler=handler,
                )
                for d in deliveries
            ]
        )

    def warn_of_different_payloads(self, deliveries: Sequence[Delivery]) -> None:
        """Messages whose key was known with another payload, and for which the key decided."""
        for delivery in deliveries:
            self.limited_log.warning(
                "different payload",
                "%s of %s came under the key %r, which was known with another payload: the key decides, so it is a "
                "duplicate of the first; to have such messages rejected, set payload= for the handler",
                delivery.received.message_id,
                self.name,
                delivery.key,
            )

    def sqs_failed(self, error: SqsError, what: str, count: int) -> None:
        """A call about messages in hand failed. Without the permission to make it, going on would only do harm."""
        self.limited_log.error(what, "%d messages of %s %s: %s", count, self.name, what, error)
        # Credentials that have expired may be renewed; a permission that is missing is missing.
        if isinstance(error, AccessDenied) and not isinstance(error, CredentialsRefused):
            self.failed(error)

    def ledger_failed(self, doing: str, error: LedgerError) -> None:
        self.metrics.ledger_errors.add(1)
        self.limited_log.error(doing, "the ledger failed at %s for %s: %s", doing, self.name, error)
        self.ledger_answers(False)

    def ledger_refused(self, doing: str, error: LedgerError) -> None:
        """The ledger answers, and does not take what it was given for one message."""
        self.metrics.ledger_errors.add(1)
        self.limited_log.error(f"refused {doing}", "the ledger refused a %s for %s: %s", doing, self.name, error)

    def claim_of(self, delivery: Delivery) -> Claim:
        assert delivery.claim is not None
        return delivery.claim
