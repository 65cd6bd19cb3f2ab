"""The messages of one queue that this process has, and the only place where their state changes.

An event happens to a chunk of messages: `apply` asks the lifecycle what follows for each, and puts the chunk into the
inboxes that the resulting actions belong to. Actions that must come after a ledger call, or after a heartbeat that is
under way, are passed along with it as the rest of the actions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from semel.consumer.admission import Admission, Prefetch
from semel.consumer.backoff import Exponential
from semel.consumer.context import Message, logger
from semel.consumer.delivery import Delivery
from semel.consumer.lifecycle import ENDS, TABLE, Action, Event, State, step
from semel.consumer.queue_reporter import QueueReporter
from semel.consumer.queue_setup import QueueSetup
from semel.consumer.scheduler import Scheduler
from semel.consumer.stage import Inbox
from semel.durations import seconds
from semel.messages.visibility import visibility_for
from semel.telemetry.attempt_log import Step
from semel.user_exceptions import described, is_failure

JITTER: Final = 2.0  # seconds, at most, that a message claimed elsewhere is hidden beyond the other worker's lease
DLQ_FAILED_ATTEMPT: Final = 20  # a message that cannot be dead-lettered waits as if it had failed this often
NOT_STARTED: Final = frozenset({State.RECEIVED, State.DISPUTED, State.CLAIMED})

Actions = tuple[Action, ...]
LedgerWork = tuple[Action, Sequence[Delivery], Actions]  # what to do for a chunk, and what to do after it


class Inboxes:
    """Where the actions of the lifecycle go."""

    def __init__(
        self,
        record: Inbox[LedgerWork],
        dead_letter: Inbox[Delivery],
        delete: Inbox[Delivery],
        hide: Inbox[tuple[Delivery, int]],
    ) -> None:
        self.record = record
        self.dead_letter = dead_letter
        self.delete = delete
        self.hide = hide


class InFlight:
    """`on_received` and `on_returned` are called when messages are received, or returned to the queue. They are for the
    heartbeat, and for a run that ends when the queue is empty."""

    inboxes: Inboxes  # set once, when the line is complete

    def __init__(
        self,
        setup: QueueSetup,
        reporter: QueueReporter,
        scheduler: Scheduler,
        on_received: Callable[[InFlight, list[Delivery]], None] = lambda _table, _chunk: None,
        on_returned: Callable[[InFlight, Delivery, float], None] = lambda _table, _delivery, _seconds: None,
    ) -> None:
        self.setup = setup
        self.reporter = reporter
        self.scheduler = scheduler
        self.on_received = on_received
        self._on_returned = on_returned
        self.lock = threading.Lock()
        self.deliveries: dict[int, Delivery] = {}  # by number, in the order in which they were received
        # The newest delivery of each message id: a lost one may still be at work when its message comes again.
        self.by_message: dict[str, Delivery] = {}
        self._by_key: dict[str, Delivery] = {}  # the deliveries whose claim was won, by ledger key
        settings = setup.settings
        self.concurrency = settings.concurrency  # can be changed while the queue is consumed
        self.prefetch = Prefetch(lease=settings.lease, limit=settings.prefetch)
        self.admission = Admission(self._handlers(), settings.max_bytes, ahead=self._ahead())
        self._received = 0
        self.stopping = False
        self.paused = False  # nothing more is received; what is in flight goes on

    # How many there may be.

    def _handlers(self) -> int:
        return self.concurrency * (self.setup.settings.size if self.setup.handler.is_batch else 1)

    def _ahead(self) -> int:
        handlers = self._handlers()
        ahead = self.prefetch.ahead(handlers, self.setup.tools.monotonic())
        # The next batch fills up while one is handled.
        return max(ahead, handlers) if self.setup.handler.is_batch and self.setup.settings.prefetch is None else ahead

    def resize(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.fit()

    def fit(self) -> None:
        """Set the number of slots to what the measurements ask for."""
        handlers, ahead = self._handlers(), self._ahead()
        if handlers != self.admission.handlers or handlers + ahead != self.admission.count:
            self.admission.resize(handlers, ahead)

    def measure(self, handled: Sequence[Delivery], now: float) -> None:
        """Measure messages whose handler has returned, and whose outcome was recorded just now."""
        handled = [delivery for delivery in handled if delivery.finished_at]
        if handled:
            in_handler = sum([delivery.finished_at - delivery.started_at for delivery in handled])
            outside = sum([d.claimed_at - d.arrived_at + now - d.finished_at for d in handled])
            self.prefetch.observe(in_handler / len(handled), outside / len(handled))
            self.fit()

    # From the receiver.

    def add(self, received: Sequence[Message], since: float, arrived_at: float) -> list[Delivery]:
        """Add messages that were received, and are hidden since `since`. Returns those that are new here."""
        setup = self.setup
        visible_at = since + int(setup.settings.lease)
        fresh, held = [], []
        with self.lock:
            for message in received:
                running = self.by_message.get(message.message_id)
                if running is not None and running.state not in ENDS and not running.is_lost:
                    # SQS has delivered a message that we have already: its newest receipt handle is the valid one.
                    running.receipt, running.visible_at, running.hidden = message.receipt, visible_at, True
                    twin = Delivery(setup, message, since, visible_at)
                    twin.key, twin.key_origin, twin.fence = running.key, running.key_origin, running.fence
                    held.append(twin)
                    continue
                delivery = Delivery(setup, message, since, visible_at, arrived_at)
                self._received += 1
                delivery.number = self._received
                self.deliveries[delivery.number] = self.by_message[message.message_id] = delivery
                fresh.append(delivery)
        if setup.fifo:
            self.scheduler.expect(fresh)
        self._count_received(len(received), fresh, held)
        return fresh

    def _count_received(self, count: int, fresh: list[Delivery], held: list[Delivery]) -> None:
        metrics = self.setup.metrics
        metrics.received.add(count)
        metrics.batch_fill.observe(count)
        if again := len(held) + sum(1 for delivery in fresh if delivery.received.receive_count > 1):
            metrics.delivered_again.add(again)
        if self.reporter.logs_attempts:
            self.reporter.log(Step.RECEIVED, (*fresh, *held))
            self.reporter.log(Step.HELD, held)

    # Events.

    def apply(self, event: Event, chunk: Sequence[Delivery]) -> None:
        """Apply the same event to each message of a chunk."""
        steps: list[tuple[Actions, list[Delivery]]] = []
        last: Actions | None = None
        with self.lock:
            for delivery in chunk:
                transition = TABLE[delivery.state][event]
                state, actions = step(delivery.state, event) if transition is None else transition
                delivery.state = state
                if not actions or not self._may_go_on(delivery, actions):
                    continue
                if actions is not last:
                    last = actions
                    steps.append((actions, []))
                steps[-1][1].append(delivery)
        for actions, deliveries in steps:
            self.follow(actions, deliveries)

    def apply_by(
        self, choose: Callable[[Delivery], Event | None], chunk: Sequence[Delivery]
    ) -> dict[Event, list[Delivery]]:
        """Apply to each message the event that `choose` returns for it, under the lock; None: nothing happens to it."""
        chosen: dict[Event, list[Delivery]] = {}
        steps: list[tuple[Actions, list[Delivery]]] = []
        with self.lock:
            for delivery in chunk:
                event = choose(delivery)
                if event is None:
                    continue
                delivery.state, actions = step(delivery.state, event)
                chosen.setdefault(event, []).append(delivery)
                if actions and self._may_go_on(delivery, actions):
                    steps.append((actions, [delivery]))
        for actions, deliveries in steps:
            self.follow(actions, deliveries)
        return chosen

    def _may_go_on(self, delivery: Delivery, actions: Actions) -> bool:
        """Called under the lock. STOP_BEAT is always the first action. While an extension is under way, the rest waits:
        False."""
        if actions[0] is Action.STOP_BEAT:
            delivery.stopped = True
            if delivery.beating:
                delivery.after_beat = actions[1:]
                return False
        return True

    def follow(self, actions: Actions, chunk: Sequence[Delivery]) -> None:
        """Hand a chunk to the stages that its actions belong to, in order."""
        inboxes = self.inboxes
        for place, action in enumerate(actions):
            if action is Action.STOP_BEAT:
                pass  # see `_may_go_on`
            elif action is Action.DELETE:
                inboxes.delete.put(chunk)
            elif action is Action.END:
                self._end(chunk, deleted=Action.DELETE in actions)
            elif action in (Action.HIDE_FOR_RETRY, Action.HIDE_FOR_LEASE, Action.SHOW):
                inboxes.hide.put(self._hidden(chunk, action))
            elif action is Action.DEAD_LETTER:
                inboxes.dead_letter.put(chunk)
            elif action is Action.NOTIFY_LOST:
                for delivery in chunk:
                    delivery.notify_lost()
            elif action is not Action.CLAIM_APART:  # which the claimer does itself
                inboxes.record.put([(action, chunk, actions[place + 1 :])])
                return

    def _hidden(self, chunk: Sequence[Delivery], action: Action) -> list[tuple[Delivery, int]]:
        pairs = [(delivery, self._hidden_for(delivery, action)) for delivery in chunk]
        for delivery, hidden_for in pairs:
            self._on_returned(self, delivery, hidden_for)
        return pairs

    def _hidden_for(self, delivery: Delivery, action: Action) -> int:
        if action is Action.SHOW:
            return 0
        tools = self.setup.tools
        if action is Action.HIDE_FOR_LEASE:
            delay = delivery.held_for + tools.chance() * JITTER
        elif delivery.retry_after is not None:
            delay = delivery.retry_after
        else:
            delay = self.retry_delay(max(1, delivery.attempt), tools.chance())
        return visibility_for(delay, tools.monotonic() - delivery.received_at)

    def retry_delay(self, attempt: int, chance: float) -> float:
        """The delay of the handler's back-off; that of the default one if the user's own back-off fails."""
        try:
            return seconds(self.setup.settings.retry.delay(attempt, chance))
        except BaseException as error:
            if not is_failure(error):
                raise
            self.reporter.limited.error(
                "retry", "the back-off of %s does not work, the default is used: %s", self.setup.name, described(error)
            )
            return Exponential().delay(attempt, chance)

    def returned(self, delivery: Delivery, hidden_for: float) -> None:
        self._on_returned(self, delivery, hidden_for)

    def _end(self, chunk: Sequence[Delivery], *, deleted: bool) -> None:
        """Free the slots of messages. If they are deleted, `Acknowledger` frees their bytes."""
        with self.lock:
            for delivery in chunk:
                self.deliveries.pop(delivery.number, None)
                message_id = delivery.received.message_id
                if self.by_message.get(message_id) is delivery:
                    del self.by_message[message_id]
                if self._by_key.get(delivery.ledger_key) is delivery:
                    del self._by_key[delivery.ledger_key]
            duplicates = [other for delivery in chunk if delivery.duplicates for other in delivery.duplicates]
        self.admission.give(len(chunk), 0 if deleted else sum([delivery.size for delivery in chunk]))
        if duplicates:
            self._show(duplicates)
        if self.setup.fifo:
            self.give_up(self.scheduler.ended(chunk))

    def _show(self, duplicates: Sequence[Delivery]) -> None:
        """Show duplicates at once: the message with their key has ended here, so they need not stay hidden for the rest
        of its lease."""
        for delivery in duplicates:
            self._on_returned(self, delivery, 1.0)
        self.inboxes.hide.put([(delivery, 0) for delivery in duplicates])

    # Claims.

    def begin_claim(self, chunk: Sequence[Delivery]) -> list[Delivery]:
        """The messages that are still to be claimed. A message that is given up meanwhile is returned only after the
        ledger has answered: before that, its next receiver might find it claimed."""
        with self.lock:
            wanted = [delivery for delivery in chunk if delivery.state is State.RECEIVED]
            for delivery in wanted:
                delivery.claiming = True
        return wanted

    def holder_of(self, ledger_key: str) -> Delivery | None:
        """The message that this process has claimed the key for."""
        return self._by_key.get(ledger_key)

    def won(self, delivery: Delivery) -> None:
        """The claim on its key is ours. A message that was lost during the call has ended, and a disputed key belongs
        to another message: neither holds its key."""
        with self.lock:
            if delivery.state is State.RECEIVED:
                self._by_key[delivery.ledger_key] = delivery

    def held(self, delivery: Delivery) -> None:
        """Its key was already claimed. If by this process, the message stays hidden until the holder has ended."""
        with self.lock:
            holder = delivery.holder or self._by_key.get(delivery.ledger_key)
            if holder is None:
                return
            if self._by_key.get(delivery.ledger_key) is holder:
                holder.duplicates = (*holder.duplicates, delivery)
            else:
                delivery.held_for = 0.0  # the holder has ended meanwhile

    def end_claim(self, chunk: Sequence[Delivery]) -> None:
        with self.lock:
            for delivery in chunk:
                delivery.claiming = False
            unwanted = [delivery for delivery in chunk if delivery.unwanted]
        if unwanted:
            self.give_up(unwanted)

    # What is given up, or lost.

    def give_up(self, chunk: Sequence[Delivery]) -> None:
        """Return the messages of a chunk that were not started."""
        if not chunk:
            return

        def choose(delivery: Delivery) -> Event | None:
            if delivery.state not in NOT_STARTED:
                return None
            if delivery.claiming:
                delivery.unwanted = True
                return None
            return Event.GIVE_UP

        given_up = self.apply_by(choose, chunk).get(Event.GIVE_UP, [])
        if given_up:
            self.setup.metrics.released.add(len(given_up))
            self.reporter.log(Step.RELEASED, given_up)

    def lose(self, delivery: Delivery, reason: str) -> None:
        """The claim may be lost: another worker may have claimed the key by now."""

        def choose(delivery: Delivery) -> Event | None:
            # If an outcome is under way nothing changes: the fence decides.
            undecided = delivery.state in (State.CLAIMED, State.WORKING)
            return Event.LOST if undecided else None

        if self.apply_by(choose, (delivery,)):
            self._report_lost(delivery, reason)

    def visibility_lost(self, delivery: Delivery, reason: str) -> None:
        """Others may see the message by now."""

        def choose(delivery: Delivery) -> Event | None:
            if delivery.state in ENDS or not delivery.hidden:
                return None
            delivery.hidden = False
            return Event.VISIBLE

        if self.apply_by(choose, (delivery,)):
            goes_on = "" if delivery.state in ENDS else "; its handler goes on, and its lease is extended"
            self._report_lost(delivery, f"{reason}{goes_on}")

    def _report_lost(self, delivery: Delivery, reason: str) -> None:
        self.setup.metrics.heartbeat_lost.add(1)
        self.reporter.log(Step.LOST, (delivery,), error=reason)
        logger.warning("lost message %s of %s: %s", delivery.received.message_id, self.setup.name, reason)
