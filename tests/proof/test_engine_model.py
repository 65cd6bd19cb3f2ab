"""Random calls to the engine and to a model of SQS in plain Python (`model.py`): the model must allow every answer.

After every step the database is checked, too: its counters and groups against its rows, and its rows against the
model's lists. Steps run in transactions of random length; some are rolled back, and then they must have had no effect.
SEMEL_PROOF_EXAMPLES=5000 makes it a long search with new random numbers each time.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import md5
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from model import (
    ATTEMPT_WINDOW,
    BAD_VALUE,
    DEDUP_WINDOW,
    SECOND,
    Entry,
    Message,
    Model,
    Queue,
    Redrive,
    Refusal,
    State,
    Task,
)

import suite
from semel.broker.engine import Caller, Engine, Wanted, dedup, expiry, generation, move_tasks, receive_log, store, sweep
from semel.broker.engine.generation import Generation
from semel.broker.engine.rows import MESSAGE_ID
from semel.broker.engine.schema import DATABASE_NAME, GENERATION_BITS, open_database
from semel.sqs import limits
from semel.sqs.errors import ServiceError

PLAIN, WORK, WORK_DEAD = "plain", "work", "work-dead"
ORDERS, EVENTS, EVENTS_DEAD = "orders.fifo", "events.fifo", "events-dead.fifo"
QUEUES: Final = (PLAIN, WORK_DEAD, WORK, ORDERS, EVENTS_DEAD, EVENTS)
# An example uses only a few of the queues, so that much happens in each.
SCENES: Final = (
    *((PLAIN,), (ORDERS,), QUEUES),
    *((WORK, WORK_DEAD), (WORK, WORK_DEAD, PLAIN), (EVENTS, EVENTS_DEAD), (EVENTS, EVENTS_DEAD, ORDERS)),
)
START: Final = 1_700_000_000_000
ARN: Final = "arn:aws:sqs:us-east-1:000000000000:"
STATES: Final = {0: State.VISIBLE, 1: State.IN_FLIGHT, 2: State.DELAYED}

# Group, deduplication id, delay and tag of a message; which handle of a queue; an attribute and its new value.
Parts = tuple[str | None, str | None, int | None, str | None]
Which = tuple[str, int]
Change = tuple[str, int]

# The values that steps choose from. A value that should come often is repeated.
SMALL: Final = range(8)
QUEUE: Final = range(6)
SELDOM: Final = (False, False, False, False, True)
EITHER: Final = (False, True)
GROUPS: Final = (None, "a", "a", "b", "c")
ENTRIES: Final = tuple(product(GROUPS, (None, "x", "y", "z"), (None, None, None, 0, 3, 900), (None, None, "red")))
VISIBILITIES: Final = (None, None, None, 0, 0, 1, 5, 43_200)
VISIBILITY_CHANGES: Final = (0, 0, 1, 10, 43_195, 43_200, 43_201, -1)
ATTEMPTS: Final = ("try-1", "try-2")
MOST: Final = (1, 1, 2, 3, 10)
HANDLES: Final = tuple(product(("current", "current", "current", "old", "foreign", "garbage"), SMALL))
ATTRIBUTES: Final = (
    *product(("VisibilityTimeout",), (0, 2, 30)),
    *product(("MessageRetentionPeriod",), (60, 60, 120, 345_600)),
    *product(("DelaySeconds",), (0, 0, 5, 900)),
    *product(("RedrivePolicy",), (0, 1, 2, 4)),
)
ENDINGS: Final = ("hidden", "hidden", "hidden", "hidden", "window", "retention", "retention")

Chosen = tuple[str, dict[str, Any]]
STEPS: dict[str, st.SearchStrategy[Chosen]] = {}
WEIGHTED: list[str] = []
F = TypeVar("F", bound=Callable[..., None])


def step(
    weight: int, list_options: dict[str, Sequence[Any]] | None = None, **options: Sequence[Any]
) -> Callable[[F], F]:
    """Registers a step, which is taken as often as its weight says. (Hypothesis's own rules have no weights.)

    Its arguments are one value of each of `options`, drawn together because each draw takes time, and a few values of
    each of `list_options`."""

    def register(function: F) -> F:
        name = function.__name__
        singles = st.sampled_from([dict(zip(options, values, strict=True)) for values in product(*options.values())])
        lists = {
            key: st.lists(st.sampled_from(values), min_size=1, max_size=5)
            for key, values in (list_options or {}).items()
        }
        STEPS[name] = st.builds(
            lambda single_values, list_values: (name, single_values | list_values),
            singles,
            st.fixed_dictionaries(lists),
        )
        WEIGHTED.extend([name] * weight)
        return function

    return register


def any_step() -> st.SearchStrategy[Chosen]:
    # When hypothesis shrinks a failing example, it replaces steps by the first of these.
    return st.sampled_from(sorted(WEIGHTED, key=lambda name: name != "wait")).flatmap(STEPS.__getitem__)


class EngineAndModel(RuleBasedStateMachine):
    """Both get the same calls at the same times."""

    folder: Path | None = None

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.opened = 0
        self.in_transaction = False
        self.saved = b""
        self.totals: Counter[tuple[str, str]] = Counter()
        self.model = self.new_model()
        self.engine = self.open()
        self.scene: Sequence[str] = QUEUES
        self.bodies = 0

    def new_model(self) -> Model:
        return Model()

    def open(self) -> Engine:
        self.opened += 1
        return Engine(open_database(self.folder), Random(self.opened), cooldowns=False)

    def teardown(self) -> None:
        self.engine.rollback()
        self.engine.close()

    @initialize(scene=st.sampled_from(SCENES), max_receives=st.sampled_from((1, 1, 2, 4)), fill=st.integers(0, 9))
    def create_all(self, scene: Sequence[str], max_receives: int, fill: int) -> None:
        self.scene = scene
        for name in QUEUES:
            self.create(name)
        self.set_attribute(WORK, "RedrivePolicy", max_receives)
        self.set_attribute(EVENTS, "RedrivePolicy", max_receives)
        for name in scene:
            for i in range(fill):
                dedup_id = f"first-{i}" if name.endswith(".fifo") else None
                self.send_one(name, ((None, "a", "b")[i % 3], dedup_id, None, None))
            self.now += SECOND
        self.commit()

    # How a step is taken.

    @rule(chosen=st.deferred(any_step))
    def play(self, chosen: Chosen) -> None:
        self.take(chosen)

    def take(self, chosen: Chosen) -> None:
        name, arguments = chosen
        getattr(self, name)(**arguments)

    def caller(self) -> Caller:
        return Caller(self.now)

    def begin(self) -> None:
        """Open a transaction if none is open, and bring the model to the present time."""
        if not self.in_transaction:
            self.engine.begin()
            self.in_transaction = True
            self.saved = pickle.dumps(self.model)
            self.totals = self.engine.store.totals.copy()
        self.model.let_time_pass(self.now)
        self.engine.woken()

    def call(self, operation: str, **params: Any) -> dict[str, Any]:
        """The engine's answer. Its errors are raised as the model's Refusal."""
        try:
            return self.engine.perform(operation, params, self.caller())
        except ServiceError as error:
            raise Refusal(error.kind.code) from error

    def both(self, engine: Callable[[], dict[str, Any]], model: Callable[[], None]) -> dict[str, Any] | None:
        """The engine's answer if both accept the call; None if both refuse it, for the same reason."""
        before = self.receivable()
        expected = outcome(model)
        answer: dict[str, Any] | None = None

        def perform() -> None:
            nonlocal answer
            answer = engine()

        assert outcome(perform) == expected
        self.check_woken(before)
        return answer

    def receivable(self) -> dict[str, set[Message]]:
        return {name: set(queue.receivable(self.now)) for name, queue in self.model.queues.items()}

    def check_woken(self, before: dict[str, set[Message]]) -> None:
        """If a call makes messages receivable, those who wait for them are woken."""
        woken = self.engine.woken()
        for name, after in self.receivable().items():
            assert after <= before.get(name, set()) or name in woken or self.engine.next_look(name) <= self.now

    def choose(self, number: int, wanted: Callable[[Queue], object] = lambda queue: True) -> str:
        """A queue of the scene, preferably one that `wanted` accepts, so that most steps have something to work on."""
        there = [name for name in self.scene if name in self.model.queues and wanted(self.model.queues[name])]
        return (there or self.scene)[number % len(there or self.scene)]

    def choose_held(self, number: int) -> str:
        """Preferably a queue with messages in flight."""
        return self.choose(number, lambda queue: queue.count(State.IN_FLIGHT, self.now))

    def address(self, name: str) -> str:
        return f"http://localhost/000000000000/{name}"

    # Send.

    def entry(self, name: str, parts: Parts) -> Entry:
        """An entry that the queue mostly accepts. Its body is new, except where deduplication uses the body."""
        group, dedup_id, delay, tag = parts
        if name == PLAIN:
            group = None
        if not name.endswith(".fifo"):
            dedup_id = dedup_id if delay == 900 and tag else None
        elif delay != 900:
            delay, group = None if delay is None else 0, group or "a"
        if name.startswith("events") and dedup_id is None:
            return Entry(f"body of {tag}", group, None, delay, tag)
        self.bodies += 1
        return Entry(f"body {self.bodies}", group, dedup_id, delay, tag)

    def parameters(self, entry: Entry) -> dict[str, Any]:
        params: dict[str, Any] = {"MessageBody": entry.body}
        if entry.group is not None:
            params["MessageGroupId"] = entry.group
        if entry.dedup_id is not None:
            params["MessageDeduplicationId"] = entry.dedup_id
        if entry.delay is not None:
            params["DelaySeconds"] = entry.delay
        if entry.tag is not None:
            params["MessageAttributes"] = {"tag": {"DataType": "String", "StringValue": entry.tag}}
        return params

    def check_sent(self, queue: Queue, entry: Entry, message: Message, new: bool, answer: dict[str, Any]) -> None:
        assert answer["MD5OfMessageBody"] == md5(entry.body.encode()).hexdigest()
        assert ("MD5OfMessageAttributes" in answer) == (entry.tag is not None)
        if new:
            self.model.learn_id(message, answer["MessageId"])
            if queue.fifo:
                assert int(answer["SequenceNumber"]) > queue.last_sequence
                self.model.learn_sequence(queue, message, answer["SequenceNumber"])
        assert answer["MessageId"] == message.message_id
        assert answer.get("SequenceNumber") == (str(message.sequence) if queue.fifo else None)

    @step(9, list_options={"all_parts": ENTRIES}, where=QUEUE, singly=EITHER)
    def send(self, where: int, all_parts: list[Parts], singly: bool) -> None:
        name = self.choose(where)
        if not singly:
            self.send_batch(name, all_parts)
            return
        for parts in all_parts:
            self.send_one(name, parts)

    def send_one(self, name: str, parts: Parts) -> None:
        self.begin()
        entry = self.entry(name, parts)
        sent: list[tuple[Message, bool]] = []
        answer = self.both(
            lambda: self.call("SendMessage", QueueUrl=self.address(name), **self.parameters(entry)),
            lambda: sent.append(self.model.send(self.model.queue(name), entry, self.now)),
        )
        if answer is not None:
            self.check_sent(self.model.queues[name], entry, *sent[0], answer)

    def send_batch(self, name: str, all_parts: list[Parts]) -> None:
        self.begin()
        batch = [self.entry(name, parts) for parts in all_parts]
        sent: list[tuple[Message, bool] | str] = []

        def expected() -> None:
            queue = self.model.queue(name)
            if queue.fifo and any(entry.group is None for entry in batch):
                raise Refusal(BAD_VALUE)
            if queue.fifo and not queue.content_dedup and any(entry.dedup_id is None for entry in batch):
                raise Refusal(BAD_VALUE)  # [56]
            for entry in batch:
                try:
                    sent.append(self.model.send(queue, entry, self.now))
                except Refusal as refusal:
                    sent.append(refusal.code)

        listed = [{"Id": str(i), **self.parameters(entry)} for i, entry in enumerate(batch)]
        answer = self.both(lambda: self.call("SendMessageBatch", QueueUrl=self.address(name), Entries=listed), expected)
        if answer is None:
            return
        answers = by_id(answer)
        for i, result in enumerate(sent):
            if isinstance(result, str):
                assert answers[i]["Code"] == result
            else:
                self.check_sent(self.model.queues[name], batch[i], *result, answers[i])

    # Receive.

    @step(9, where=QUEUE, limit=MOST, seconds=VISIBILITIES, attempt=(None, None, None, *ATTEMPTS), hung_up=SELDOM)
    def receive(self, where: int, limit: int, seconds: int | None, attempt: str | None, hung_up: bool) -> None:
        name = self.choose(where, lambda queue: queue.receivable(self.now))
        handed = self.receive_from(name, limit, seconds, attempt)
        if hung_up and any(message.hidden_until > self.now for message in handed):
            self.give_back(self.model.queues[name], [message.handle for message in handed])

    @step(5, where=QUEUE, limit=MOST, times=(1, 2, 4, 8))
    def receive_and_release(self, where: int, limit: int, times: int) -> None:
        """Makes messages be received often."""
        name = self.choose(where, lambda queue: queue.receivable(self.now))
        for _ in range(times):
            self.receive_from(name, limit, 0, None)

    @step(2, attempt=ATTEMPTS, where=QUEUE, seconds=VISIBILITIES)
    def try_again(self, attempt: str, where: int, seconds: int | None) -> None:
        """Preferably where that attempt was made before."""
        name = self.choose(where, lambda queue: self.model.replay(queue, attempt, self.now))
        self.receive_from(name, 10, seconds, attempt)

    def receive_from(self, name: str, limit: int, seconds: int | None, attempt: str | None) -> list[Message]:
        self.begin()
        queue = self.model.queues.get(name)
        if queue is None:
            self.both(lambda: self.call("ReceiveMessage", QueueUrl=self.address(name)), lambda: self.absent(name))
            return []
        if not queue.fifo:
            attempt = None
        params: dict[str, Any] = {"MaxNumberOfMessages": limit, "MessageSystemAttributeNames": ["All"]}
        params |= {"QueueUrl": self.address(name), "MessageAttributeNames": ["All"]}
        if seconds is not None:
            params["VisibilityTimeout"] = seconds
        if attempt is not None:
            params["ReceiveRequestAttemptId"] = attempt
        visibility = queue.visibility if seconds is None else seconds * SECOND
        before = self.receivable()
        again = self.model.replay(queue, attempt, self.now) if attempt else []
        queue.turns = self.turns(name)
        refused = None if again else outcome(lambda: self.model.room(queue, self.now))
        if refused is not None:
            assert outcome(lambda: self.call("ReceiveMessage", **params)) == refused
            return []
        answer = self.call("ReceiveMessage", **params)
        assert "Messages" not in answer or answer["Messages"]
        shown = answer.get("Messages", [])
        if again:
            self.received_again(queue, shown, again, visibility)
        else:
            again = self.received(queue, shown, min(limit, self.model.room(queue, self.now)), visibility)
        if attempt is not None:
            self.model.remember_attempt(queue, attempt, again, self.now)
        self.check_woken(before)
        return again

    def absent(self, name: str) -> None:
        self.model.queue(name)

    def received(self, queue: Queue, shown: list[dict[str, Any]], limit: int, visibility: int) -> list[Message]:
        if queue.fifo:
            handed, dead_letters = self.model.fifo_choice(queue, limit, self.now)
            assert [item["MessageId"] for item in shown] == [message.message_id for message in handed]
            self.check_turns(queue, [message.group or "" for message in handed])
        else:
            here = {message.message_id: message for message in queue.messages}
            handed = [here[item["MessageId"]] for item in shown]
            dead_letters = self.dead_letters(queue, here)
            self.model.check_standard_choice(queue, limit, handed, dead_letters, self.now)
        for message, item in zip(handed, shown, strict=True):
            self.model.hand_out(queue, message, item["ReceiptHandle"], visibility, self.now)
            self.check_shown(queue, message, item)
        for message in dead_letters:
            self.model.dead_letter(queue, message, self.now)
        return handed

    def turns(self, name: str) -> dict[str, int]:
        """The order in which groups were served is taken from the engine; its consequences are the model's."""
        return {group.name: group.turn for group in self.generation(name).groups.values()}

    def check_turns(self, queue: Queue, served: list[str]) -> None:
        """A group that was served goes behind all groups that were not [54]."""
        turns = self.turns(queue.name)
        latest = sorted(turns, key=lambda group: turns[group])[len(turns) - len(set(served)) :]
        assert latest == list(dict.fromkeys(served))

    def dead_letters(self, queue: Queue, here: dict[str, Message]) -> list[Message]:
        """The messages that are in the dead-letter queue now, in the order in which they got there."""
        if queue.redrive is None or queue.redrive.target not in self.model.queues:
            return []
        target = self.engine.store.queues[queue.redrive.target].generation
        self.engine.store.write_out()
        query = f"SELECT {MESSAGE_ID} FROM messages WHERE id >= {target.low} AND id < {target.high} ORDER BY id"
        ids = [row[0] for row in self.select(query)]
        return [here[message_id] for message_id in ids if message_id in here]

    def received_again(
        self, queue: Queue, shown: list[dict[str, Any]], messages: list[Message], visibility: int
    ) -> None:
        assert [item["ReceiptHandle"] for item in shown] == [message.handle for message in messages]
        for message, item in zip(messages, shown, strict=True):
            self.check_shown(queue, message, item)
            self.model.hide_again(message, visibility, self.now)

    def check_shown(self, queue: Queue, message: Message, item: dict[str, Any]) -> None:
        attributes = dict(item["Attributes"])
        if queue.fifo:
            sequence = attributes.pop("SequenceNumber")
            if not message.sequence:
                self.model.learn_sequence(queue, message, sequence)
            assert sequence == str(message.sequence)
        assert attributes == self.system_attributes(queue, message)
        assert item["Body"] == message.body
        assert item["MD5OfBody"] == md5(message.body.encode()).hexdigest()
        tag = {"tag": {"DataType": "String", "StringValue": message.tag}}
        assert item.get("MessageAttributes") == (tag if message.tag else None)

    def system_attributes(self, queue: Queue, message: Message) -> dict[str, str]:
        attributes = {
            "SenderId": "000000000000",
            "SentTimestamp": str(message.sent),
            "ApproximateReceiveCount": str(message.prior + message.receives),
        }
        if message.first_received:
            attributes["ApproximateFirstReceiveTimestamp"] = str(message.first_received)
        if message.group is not None:
            attributes["MessageGroupId"] = message.group
        if queue.fifo:
            attributes["MessageDeduplicationId"] = message.dedup_id or message.message_id
        if message.source is not None:
            attributes["DeadLetterQueueSourceArn"] = ARN + message.source
        return attributes

    def give_back(self, queue: Queue, handles: list[str]) -> None:
        """What the server does if a client hangs up before it gets its answer."""
        before = self.receivable()
        self.engine.give_back(queue.name, handles, self.now, self.now)
        for handle in handles:
            self.model.give_back(handle, self.now)
        self.check_woken(before)

    # Delete and change visibility.

    def handle(self, name: str, which: Which) -> str:
        kind, number = which
        known = {
            "current": [m.handle for m in self.messages(name) if m.handle],
            "old": [h for h, receipt in self.model.receipts.items() if receipt.queue.name == name],
            "foreign": [h for h, receipt in self.model.receipts.items() if receipt.queue.name != name],
            "garbage": ["", "garbage", "A" * 27 + "=", *(h[:-3] + "AA=" for h in self.model.receipts)],
        }[kind]
        known = known or list(self.model.receipts) or ["no handle yet"]
        return known[-1 - number % len(known)]

    def messages(self, name: str) -> list[Message]:
        return self.model.queues[name].messages if name in self.model.queues else []

    @step(6, list_options={"all_which": HANDLES}, where=QUEUE, singly=EITHER)
    def delete(self, where: int, all_which: list[Which], singly: bool) -> None:
        self.begin()
        name = self.choose_held(where)
        handles = [self.handle(name, which) for which in all_which]
        if singly:
            for handle in handles:
                params = {"QueueUrl": self.address(name), "ReceiptHandle": handle}
                self.both(partial(self.call, "DeleteMessage", **params), partial(self.delete_in_model, name, [handle]))
            return
        listed = [{"Id": str(i), "ReceiptHandle": handle} for i, handle in enumerate(handles)]
        self.batch("DeleteMessageBatch", name, listed, lambda: self.try_to_delete_in_model(name, handles))

    def delete_in_model(self, name: str, handles: list[str]) -> None:
        (refused,) = self.try_to_delete_in_model(name, handles)
        if refused is not None:
            raise Refusal(refused)

    def try_to_delete_in_model(self, name: str, handles: list[str]) -> list[str | None]:
        """The result for each handle. All handles are checked before any message is deleted."""
        queue = self.model.queue(name)
        doomed: set[Message] = set()

        def mark(handle: str) -> None:
            doomed.update(self.model.deletable(queue, handle, self.now))

        results = [outcome(partial(mark, handle)) for handle in handles]
        for message in doomed:
            self.model.remove(queue, message)
        return results

    def batch(
        self, operation: str, name: str, listed: list[dict[str, Any]], model: Callable[[], list[str | None]]
    ) -> None:
        """A batch has one answer for each entry."""
        results: list[str | None] = []
        answer = self.both(
            lambda: self.call(operation, QueueUrl=self.address(name), Entries=listed), lambda: results.extend(model())
        )
        if answer is not None:
            answers = by_id(answer)
            assert [answers[i].get("Code") for i in range(len(listed))] == results

    @step(5, list_options={"wanted": tuple(product(HANDLES, VISIBILITY_CHANGES))}, where=QUEUE, singly=EITHER)
    def change_visibility(self, where: int, wanted: list[tuple[Which, int]], singly: bool) -> None:
        self.begin()
        name = self.choose_held(where)
        pairs = [(self.handle(name, which), seconds) for which, seconds in wanted]

        def change(handle: str, seconds: int) -> None:
            self.model.change_visibility(self.model.queue(name), handle, seconds, self.now)

        if singly:
            for handle, seconds in pairs:
                params = {"QueueUrl": self.address(name), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
                self.both(partial(self.call, "ChangeMessageVisibility", **params), partial(change, handle, seconds))
            return
        listed = [
            {"Id": str(i), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
            for i, (handle, seconds) in enumerate(pairs)
        ]
        self.batch("ChangeMessageVisibilityBatch", name, listed, lambda: self.change_in_model(name, change, pairs))

    def change_in_model(
        self, name: str, change: Callable[[str, int], None], pairs: list[tuple[str, int]]
    ) -> list[str | None]:
        self.model.queue(name)
        return [outcome(partial(change, handle, seconds)) for handle, seconds in pairs]

    # Time.

    @step(2, milliseconds=(1, 400, 1_000, 1_000, 5_000, 30_000))
    def wait(self, milliseconds: int) -> None:
        self.now += milliseconds

    @step(6, what=ENDINGS, which=SMALL, offset=(-1, 0, 0, 0, 1))
    def wait_for(self, what: str, which: int, offset: int) -> None:
        """Advance the time to just before, exactly to, or just after a moment when something ends."""
        queues = [self.model.queues[name] for name in self.scene if name in self.model.queues]
        moments = sorted({moment for queue in queues for moment in endings(queue, what) if moment > self.now + 1})
        if moments:
            self.now = moments[which % len(moments)] + offset

    # Queues.

    @step(2, where=QUEUE, how=("purge", "create again", "delete"), sweeps=(0, 0, 0, 1, 5))
    def empty(self, where: int, how: str, sweeps: int) -> None:
        self.begin()
        name = self.choose(where, lambda queue: where > 2 and self.is_moving(queue))
        if how == "purge":
            self.both(
                lambda: self.call("PurgeQueue", QueueUrl=self.address(name)),
                lambda: self.model.purge(self.model.queue(name)),
            )
        else:
            self.both(
                lambda: self.call("DeleteQueue", QueueUrl=self.address(name)),
                lambda: self.model.delete_queue(self.model.queue(name)),
            )
        for _ in range(sweeps):
            self.sweep()
        if how == "create again" and name not in self.model.queues:
            self.create(name)
        if where % 2:
            self.step_moves()

    @step(2, where=QUEUE, change=ATTRIBUTES, other=SMALL)
    def set_attributes(self, where: int, change: Change, other: int) -> None:
        self.set_attribute(self.choose(where), *change, other=other)

    def set_attribute(self, name: str, attribute: str, value: int, other: int = 0) -> None:
        self.begin()
        text = str(value)
        redrive: Redrive | None = None
        if attribute == "RedrivePolicy":
            redrive = Redrive(dead_letter_queue(name, other), value) if value else None
            policy = {"deadLetterTargetArn": ARN + redrive.target, "maxReceiveCount": value} if redrive else {}
            text = json.dumps(policy) if redrive else ""

        def expected() -> None:
            queue = self.model.queue(name)
            if redrive is not None and redrive.target not in self.model.queues:
                raise Refusal(BAD_VALUE)
            match attribute:
                case "VisibilityTimeout":
                    queue.visibility = value * SECOND
                case "MessageRetentionPeriod":
                    queue.retention = value * SECOND
                    self.model.let_time_pass(self.now)
                case "DelaySeconds":
                    queue.delay = value * SECOND
                case "RedrivePolicy":
                    queue.redrive = redrive

        self.both(
            lambda: self.call("SetQueueAttributes", QueueUrl=self.address(name), Attributes={attribute: text}), expected
        )

    @step(2, where=QUEUE, counting=EITHER)
    def look(self, where: int, counting: bool) -> None:
        self.begin()
        queue = self.model.queues.get(self.choose(where))
        if queue is not None:
            (self.look_at_counts if counting else self.look_at_messages)(queue.name, queue)

    def look_at_counts(self, name: str, queue: Queue) -> None:
        answer = self.call("GetQueueAttributes", QueueUrl=self.address(name), AttributeNames=["All"])["Attributes"]
        counts = {state: queue.count(state, self.now) for state in State}
        assert {
            State.VISIBLE: int(answer["ApproximateNumberOfMessages"]),
            State.IN_FLIGHT: int(answer["ApproximateNumberOfMessagesNotVisible"]),
            State.DELAYED: int(answer["ApproximateNumberOfMessagesDelayed"]),
        } == counts
        self.check_measures(name, queue)

    def check_measures(self, name: str, queue: Queue) -> None:
        counts = {state: queue.count(state, self.now) for state in State}
        measures = self.engine.measure(name, self.now)
        assert (measures.visible, measures.in_flight, measures.delayed) == tuple(counts.values())
        assert measures.busy_groups == queue.busy_groups(self.now)
        arrivals = [message.arrived for message in queue.messages if message.receives < 3]
        assert measures.oldest_age == (self.now - min(arrivals, default=self.now)) / SECOND

    def look_at_messages(self, name: str, queue: Queue) -> None:
        """A peek shows the present state, even if no call has expired anything in the queue since."""
        shown = self.peek(name)
        messages = sorted(queue.messages, key=lambda message: message.number)
        assert [item["MessageId"] for item in shown] == [message.message_id for message in messages]
        for item, message in zip(shown, messages, strict=True):
            assert item["State"] == queue.state(message, self.now).value
            item["Attributes"].pop("SequenceNumber", None)
            assert item["Attributes"] == self.system_attributes(queue, message)

    def peek(self, name: str) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = self.engine.peek(name, Wanted(), limit=1_000_000, now=self.now)["Messages"]
        return shown

    @step(1, where=SMALL)
    def create_again(self, where: int) -> None:
        gone = [name for name in QUEUES if name not in self.model.queues]
        if gone:
            self.create(gone[where % len(gone)])

    def create(self, name: str) -> None:
        self.begin()
        attributes = {}
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        if name.startswith("events"):
            attributes |= {"ContentBasedDeduplication": "true", "DeduplicationScope": "messageGroup"}
        self.call("CreateQueue", QueueName=name, Attributes=attributes)
        events = name.startswith("events")
        self.model.queues[name] = Queue(
            name, group_scope=events, content_dedup=events, look_ahead=self.model.look_ahead
        )

    @step(1)
    def sweep(self) -> None:
        self.begin()
        self.engine.sweep(self.now)

    # Move tasks.

    @step(3, where=QUEUE, to=(*[None] * 6, *QUEUE), rate=(None, 1, 2))
    def start_move(self, where: int, to: int | None, rate: int | None) -> None:
        self.begin()
        name = self.choose(where, lambda queue: queue.messages and allowed(self.model.check_move, queue.name, None))
        destination = None if to is None else self.choose(to)
        if destination is not None and (destination == name or destination.endswith(".fifo") != name.endswith(".fifo")):
            destination = None
        params: dict[str, Any] = {"SourceArn": ARN + name}
        if destination is not None:
            params["DestinationArn"] = ARN + destination
        if rate is not None:
            params["MaxNumberOfMessagesPerSecond"] = rate
        answer = self.both(
            lambda: self.call("StartMessageMoveTask", **params), lambda: self.model.check_move(name, destination)
        )
        if answer is not None:
            self.model.start_move(answer["TaskHandle"], name, destination, rate, self.now)

    @step(6, what=("step", "step", "step", "step", "list", "cancel"), which=SMALL)
    def attend_to_moves(self, what: str, which: int) -> None:
        self.begin()
        if not self.model.tasks:
            return
        task = self.model.tasks[-1 - which % min(4, len(self.model.tasks))]
        match what:
            case "step":
                self.step_moves()
            case "list":
                self.list_moves(task.source)
            case "cancel":
                self.cancel_move(task)

    def is_moving(self, queue: Queue) -> bool:
        return any(task.source == queue.name and task.status == "RUNNING" for task in self.model.tasks)

    def step_moves(self) -> None:
        before = self.receivable()
        self.engine.step_moves(self.now)
        arrived: dict[str, list[Message]] = {}
        for task in self.model.tasks:
            if task.status == "RUNNING":
                for queue, message in self.model.step_move(task, self.now):
                    arrived.setdefault(queue.name, []).append(message)
        for name, messages in arrived.items():
            new = [item["MessageId"] for item in self.peek(name) if item["MessageId"] not in self.model.message_ids]
            for message, message_id in zip(messages, new, strict=True):
                self.model.learn_id(message, message_id)
        self.check_woken(before)

    def cancel_move(self, task: Task) -> None:
        answer = self.both(
            lambda: self.call("CancelMessageMoveTask", TaskHandle=task.handle), lambda: self.model.cancel_move(task)
        )
        assert answer is None or answer == {"ApproximateNumberOfMessagesMoved": task.moved}

    def list_moves(self, name: str) -> None:
        if name not in self.model.queues:
            return
        tasks = [task for task in reversed(self.model.tasks) if task.source == name][:10]
        results = self.call("ListMessageMoveTasks", SourceArn=ARN + name, MaxResults=10)["Results"]
        assert [self.listed(task) for task in tasks] == [
            (item["Status"], item.get("TaskHandle"), item["ApproximateNumberOfMessagesMoved"], item["StartedTimestamp"])
            for item in results
        ]

    def listed(self, task: Task) -> tuple[str, str | None, int, int]:
        return task.status, task.handle if task.status == "RUNNING" else None, task.moved, task.started

    # Transactions.

    @step(3)
    def commit(self) -> None:
        if self.in_transaction:
            self.engine.flush()
            self.engine.commit()
            self.engine.committed()
            self.in_transaction = False

    @step(1, flushed=EITHER)
    def roll_back(self, flushed: bool) -> None:
        """A transaction that is rolled back has no effect, also if only the commit itself failed (`flushed`)."""
        if self.in_transaction:
            if flushed:
                self.engine.flush()
            self.engine.rollback()
            self.forget()
            assert self.engine.store.totals == self.totals

    def forget(self) -> None:
        if self.in_transaction:
            self.model = pickle.loads(self.saved)
            self.in_transaction = False

    @step(2, orderly=EITHER)
    def reopen(self, orderly: bool) -> None:
        """Close and open the engine again. Without a commit, the transaction has no effect. (Not for a database in
        memory, which is gone when it is closed.)"""
        if self.folder is None:
            return
        if orderly:
            self.commit()
            self.engine.close()
        else:
            self.kill()
        self.forget()
        self.engine = self.open()

    def kill(self) -> None:
        """Keep the files as they are at this moment, without what the process would write at its end."""
        assert self.folder is not None
        copy = Path(tempfile.mkdtemp(prefix="semel-proof-"))
        for name in (DATABASE_NAME, f"{DATABASE_NAME}-wal"):
            if (self.folder / name).exists():
                shutil.copy(self.folder / name, copy / name)
        self.engine.rollback()
        self.engine.close()
        shutil.rmtree(self.folder)
        self.folder = copy

    # What must hold after every step.

    @invariant()
    def check(self) -> None:
        self.whoever_waits_looks_in_time()
        store = self.engine.store
        if store._sent_plain or store._sent or store._deleted:
            return  # reading the table would write these out, and hide a bug in a later step that forgets to
        self.every_message_is_where_the_model_has_it()
        self.counters_are_what_counting_gives()
        self.groups_are_what_their_messages_make_them()
        self.no_message_is_in_two_places()
        self.nothing_is_hidden_for_more_than_twelve_hours_after_its_receive()

    def every_message_is_where_the_model_has_it(self) -> None:
        assert self.engine.store.queues.keys() == self.model.queues.keys()
        for name, queue in self.model.queues.items():
            generation = self.generation(name)
            kept = [row for row in self.rows(generation) if row[2] + queue.retention > self.now]
            messages = {}
            for number, message_id, enqueued, _ in kept:
                state = generation.states.get(number)
                # A hidden message whose timeout has ended is visible, even if no call has expired it yet.
                kind = 0 if state is None or state.due <= self.now else state.state
                messages[message_id] = STATES[kind], 0 if state is None else state.receives, enqueued
            assert messages == {
                message.message_id: (queue.state(message, self.now), message.receives, message.enqueued)
                for message in queue.messages
                if message.enqueued + queue.retention > self.now
            }
            assert len(messages) == len(kept)

    def generation(self, name: str) -> Generation:
        return self.engine.store.queues[name].generation

    def rows(self, generation: Generation) -> list[tuple[int, str, int, str | None]]:
        bounds = f"id >= {generation.low} AND id < {generation.high}"
        query = f"SELECT id, {MESSAGE_ID}, enqueued, grp FROM messages WHERE {bounds} ORDER BY id"
        return [(row[0] - generation.low, *row[1:]) for row in self.select(query)]

    def counters_are_what_counting_gives(self) -> None:
        for name in self.model.queues:
            generation = self.generation(name)
            numbers = {row[0] for row in self.rows(generation)}
            assert generation.states.keys() <= numbers
            counted = Counter(state.state for state in generation.states.values())
            ready = len(numbers) - counted[1] - counted[2]
            assert generation.counts == [ready, counted[1], counted[2]]
            assert generation.busy_groups == sum(bool(group.in_flight) for group in generation.groups.values())

    def groups_are_what_their_messages_make_them(self) -> None:
        """Every group has messages, every message with a group id is in its group, and ready messages can be found."""
        for name in self.model.queues:
            generation = self.generation(name)
            assert generation.cursor < generation.next_number, "a message that is sent now would not be found"
            members: dict[str, tuple[list[int], set[int], int]] = {}
            returned = set()
            for number, _, _, group in self.rows(generation):
                state = generation.states.get(number)
                place = number if state is None else state.place
                key = place << GENERATION_BITS | number
                if group is None:
                    if state is not None and state.state == 0:
                        returned.add(key)
                    assert state is not None or number > generation.cursor
                    continue
                ready, in_flight, delayed = members.get(group, ([], set(), 0))
                if state is None or state.state == 0:
                    ready.append(key)
                elif state.state == 1:
                    in_flight.add(number)
                else:
                    delayed += 1
                members[group] = ready, in_flight, delayed
            assert returned <= set(generation.returned)
            assert {
                group.name: (group.items[group.start :], group.in_flight, group.delayed)
                for group in generation.groups.values()
            } == {group: (sorted(ready), in_flight, delayed) for group, (ready, in_flight, delayed) in members.items()}
            fifo, heap = generation.fifo, generation.group_heap
            offered = {id(group) for rank, group in heap if group.offered == rank == group.rank(fifo)}
            offered |= {id(group) for group in generation.beyond_look_ahead.values()}
            for message_group in generation.groups.values():
                assert not message_group.receiving
                assert message_group.rank(fifo) is None or id(message_group) in offered

    def no_message_is_in_two_places(self) -> None:
        assert self.select(f"SELECT {MESSAGE_ID} FROM messages GROUP BY 1 HAVING count(*) > 1") == []

    def nothing_is_hidden_for_more_than_twelve_hours_after_its_receive(self) -> None:
        for name in self.model.queues:
            for state in self.generation(name).states.values():
                assert state.state != 1 or state.due - state.received <= 43_200_000

    def whoever_waits_looks_in_time(self) -> None:
        for name, queue in self.model.queues.items():
            hidden = [queue.due(message) for message in queue.messages if queue.due(message) > self.now]
            assert self.engine.next_look(name) <= min(hidden, default=self.engine.next_look(name))

    def select(self, query: str) -> list[tuple[Any, ...]]:
        return self.engine.store.db.execute(query).fetchall()


class OnDisk(EngineAndModel):
    """The engine is closed and opened again at any time."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="semel-proof-"))
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        assert self.folder is not None
        shutil.rmtree(self.folder)


class RebuiltAtEveryStep(EngineAndModel):
    """The engine is killed after every step, and its memory is rebuilt from the database."""

    steps_to_live = 1

    def __init__(self) -> None:
        self.steps = 0
        super().__init__()

    def take(self, chosen: Chosen) -> None:
        super().take(chosen)
        self.steps += 1
        if self.steps % self.steps_to_live == 0:
            self.commit()
            self.opened += 1
            self.engine = Engine(self.engine.store.db, Random(self.opened), cooldowns=False)


class RebuiltAfterAFewSteps(RebuiltAtEveryStep):
    """The engine is killed after every few steps, so that it uses the memory that it has rebuilt."""

    steps_to_live = 4


class InSmallSteps(EngineAndModel):
    """With very low limits, so that everything that can be done in portions is. The engine expires everything before
    each step."""

    def new_model(self) -> Model:
        return Model(max_in_flight=6, look_ahead=6, move_step=2)

    def begin(self) -> None:
        super().begin()
        for name, queue in self.model.queues.items():
            self.check_measures(name, queue)
        self.engine.woken()


class RebuiltInSmallSteps(RebuiltAtEveryStep, InSmallSteps):
    """With a receive log that is trimmed all the time, so that the memory is rebuilt from rows that were appended
    again."""

    def take(self, chosen: Chosen) -> None:
        self.begin()
        self.engine.sweep(self.now)
        super().take(chosen)


def endings(queue: Queue, what: str) -> Iterator[int]:
    match what:
        case "hidden":
            yield from (queue.due(message) for message in queue.messages)
        case "window":
            yield from (accepted.at + DEDUP_WINDOW for accepted in queue.accepted.values())
            yield from (attempt.at + ATTEMPT_WINDOW for attempt in queue.attempts.values())
        case "retention":
            yield from (message.enqueued + queue.retention for message in queue.messages)


def outcome(call: Callable[[], object]) -> str | None:
    """The error code of a call, or None if it succeeds."""
    try:
        call()
    except Refusal as refusal:
        return refusal.code
    return None


def allowed(call: Callable[..., object], *arguments: object) -> bool:
    return outcome(lambda: call(*arguments)) is None


def by_id(answer: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """A batch's answers by the number of their entry. The answer has no empty lists."""
    assert all(answer.values())
    return {int(entry["Id"]): entry for entry in (*answer.get("Successful", ()), *answer.get("Failed", ()))}


def dead_letter_queue(name: str, other: int) -> str:
    """Mostly the queue's own dead-letter queue, sometimes another one of the same type."""
    family = QUEUES[:3] if name in QUEUES[:3] else QUEUES[3:]
    others = [queue for queue in (WORK_DEAD, EVENTS_DEAD, *family) if queue != name and queue in family]
    return others[other % len(others)]


def effort(examples: int, steps: int) -> settings:
    wanted = os.environ.get("SEMEL_PROOF_EXAMPLES")
    return settings(
        max_examples=int(wanted) if wanted else suite.effort(fast=examples // 5, full=examples),
        stateful_step_count=steps,
        derandomize=not wanted,
        database=None,
        report_multiple_bugs=False,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def test_the_engine_answers_every_call_as_the_model_does() -> None:
    run_state_machine_as_test(EngineAndModel, settings=effort(300, 80))


def test_a_database_that_is_closed_and_opened_again_is_the_same() -> None:
    run_state_machine_as_test(OnDisk, settings=effort(40, 60))


def test_an_engine_that_is_killed_after_every_step_goes_on_as_if_nothing_had_happened() -> None:
    run_state_machine_as_test(RebuiltAtEveryStep, settings=effort(150, 60))


def test_an_engine_that_is_killed_after_a_few_steps_goes_on_as_if_nothing_had_happened() -> None:
    run_state_machine_as_test(RebuiltAfterAFewSteps, settings=effort(150, 60))


@pytest.mark.parametrize("machine", [InSmallSteps, RebuiltInSmallSteps])
def test_what_is_done_in_portions_adds_up(machine: type[EngineAndModel], monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (expiry, "_CHUNK", 2),
        (sweep, "_CHUNK", 2),
        (dedup, "_LONGEST_LOG", 3),
        (move_tasks, "_STEP", 2),
        (generation, "_STALE_ENTRIES", 2),
        (generation, "_ITEMS_DROPPED", 2),
        (expiry, "_STALE_BACKDATED", 2),
        (receive_log, "_LONG", 5),
        (receive_log, "_MOST_STATES", 2),
        (receive_log, "_TRIMMED_ROWS", 2),
        (store, "_NUMBERS_RESERVED", 3),
        (limits, "MAX_IN_FLIGHT", 6),
        (limits, "FIFO_LOOK_AHEAD", 6),
    ):
        monkeypatch.setattr(module, name, value)
    run_state_machine_as_test(machine, settings=effort(120, 80))
