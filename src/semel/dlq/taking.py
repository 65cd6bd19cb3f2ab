"""Taking letters into hand: those that match, each once, in the order of the queue, and none that came after the start.

Two ways. Semel's broker shows what lies in the queue, and the letters that match are received by their ids: the others
are not touched. SQS gives only whatever is next: what does not match is kept hidden until the end and then given back.
In a FIFO group nothing is taken past a matching letter that could not be taken: order is worth more than speed.
"""

from __future__ import annotations

import contextlib
import queue as queues
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self, cast

from semel.dlq.glancing import Glance
from semel.dlq.holding import Hand, depth
from semel.dlq.jobs import Job
from semel.dlq.model import DeadLetter
from semel.sqs.client import Client, Queue, Received
from semel.sqs.client.admin import MOST, Admin
from semel.sqs.errors import OverLimit, SqsError

VISIBILITY: Final = 120  # seconds that a letter is hidden for, until it is extended
_PAGES_AHEAD: Final = 10
_CANARY_LOOK: Final = 10_000  # letters among which those that go first are chosen
_CANARY_TAKE: Final = 100  # the same where looking means receiving
_EMPTY: Final = 2  # empty receives in a row that are the end of a queue
_WAIT: Final = 1  # seconds: a receive that waits asks all of SQS's servers
# SQS hides no more than 120,000 messages of a queue; a few are left for others.
MAX_HELD: Final = 110_000


class Matcher(Protocol):
    """A filter, as `semel.dlq.filters` makes them."""

    @property
    def everything(self) -> bool: ...
    @property
    def needs_body(self) -> bool: ...
    def matches(self, letter: DeadLetter, now: float) -> bool: ...


class Choice(NamedTuple):
    """Which letters are wanted; `started` is when the redrive began, by the clock that stamps messages."""

    where: Matcher
    ids: frozenset[str]
    started: float

    def matches(self, letter: DeadLetter | Glance) -> bool:
        return (not self.ids or letter.id in self.ids) and self.where.matches(cast(DeadLetter, letter), self.started)


class Taker(ABC):
    """Letters come into hand by `take` and leave it by `sent`, `refuse`, or at the end, when the rest is given back."""

    def __init__(self, source: Queue, choice: Choice, job: Job, monotonic: Callable[[], float]) -> None:
        self.source, self.choice, self.job = source, choice, job
        self.hand = Hand(source, VISIBILITY, monotonic)
        self.blocked: set[str] = set()  # FIFO groups of which a letter had to stay
        self._gone: set[str] = set()  # ids that were sent: a delete may fail, and the letter be seen again

    @abstractmethod
    def take(self, most: int) -> list[DeadLetter]:
        """Up to so many, now in hand. None at all: there are no more."""

    @abstractmethod
    def first(self, count: int, choose: Callable[[Sequence[DeadLetter], int], list[DeadLetter]]) -> list[DeadLetter]:
        """Takes those that `choose` picks from a good number of letters; of a FIFO group only the first may be."""

    @abstractmethod
    def look(self, limit: int | None) -> Iterator[DeadLetter]:
        """Those that would be taken. Where looking is receiving, they are given back at the end."""

    @abstractmethod
    def refuse(self, letters: Sequence[DeadLetter]) -> None:
        """They were taken and cannot be sent: they stay in the queue, and do not come again."""

    def sent(self, letters: Sequence[DeadLetter]) -> None:
        """A copy of each is under way: whatever happens now, none of them is sent again."""
        self._gone.update(letter.id for letter in letters)

    def delete(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Deletes them from the queue; returns those that could not be, after all attempts."""
        left = self._delete(letters)
        if left:
            left = self._delete(self._again(left))
        self.hand.drop(letters)
        return left

    def _delete(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        if not letters:
            return []
        try:
            outcomes = self.source.delete([self.hand.receipt_of(letter) for letter in letters])
        except SqsError:
            return list(letters)
        return [letter for letter, outcome in zip(letters, outcomes, strict=True) if outcome is not None]

    def _again(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """Gets newer receipts, where those can be had."""
        return letters

    def __enter__(self) -> Self:
        self.hand.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.hand.__exit__()
        if self.hand.given_back:
            self.job.add(given_back=self.hand.given_back)

    def _heads(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Those before which none of the same FIFO group stands."""
        if not self.source.fifo:
            return list(letters)
        met: set[str] = set()
        found = []
        for letter in letters:
            if letter.group not in met and letter.group not in self.blocked:
                found.append(letter)
            met.add(letter.group)
        return found


class _Ref(NamedTuple):
    """A letter that matches, as it was seen in the queue."""

    id: str
    place: int
    group: str
    visible: bool


class ByIds(Taker):
    """From Semel's broker."""

    def __init__(
        self, admin: Admin, source: Queue, choice: Choice, job: Job, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(source, choice, job, monotonic)
        self._admin = admin
        # What came later has a later place: nothing that fails again is met a second time.
        self._end = admin.peek(source.name, limit=1, bodies=False).end
        self._ahead: queues.Queue[list[_Ref] | BaseException | None] = queues.Queue(_PAGES_AHEAD)
        self._refs: deque[_Ref] = deque()
        self._scanner: threading.Thread | None = None
        self._stop = threading.Event()
        self._finished = False
        self._elsewhere = 0  # letters in somebody else's hand
        if choice.where.everything and not choice.ids:
            job.total = depth(source)

    # Looking.

    def _messages(self, *, bodies: bool) -> Iterator[list[dict[str, Any]]]:
        """What lay in the queue at the start, page by page, in the order of the queue."""
        if self.choice.ids:
            wanted = sorted(self.choice.ids)
            found: list[dict[str, Any]] = []
            for begin in range(0, len(wanted), MOST):
                found += self._admin.messages(self.source.name, ids=wanted[begin : begin + MOST], bodies=bodies)
            yield sorted(found, key=lambda message: int(message["Place"]))
            return
        place: int | None = 0
        while place is not None and place < self._end:
            page = self._admin.peek(self.source.name, after=place, bodies=bodies)
            yield [message for message in page.messages if message["Place"] <= self._end]
            place = page.next

    def _matching(self) -> Iterator[tuple[int, list[Glance]]]:
        """How many were looked at, and those that match."""
        where, matches = self.choice.where, self.choice.matches
        for page in self._messages(bodies=where.needs_body):
            seen = [Glance(message, self.source.name) for message in page]
            yield len(page), seen if where.everything else [one for one in seen if matches(one)]

    def _scan(self) -> None:
        try:
            for seen, page in self._matching():
                self.job.add(looked_at=seen)
                if page:
                    self._put([_ref(one.message) for one in page])
                if self._stop.is_set():
                    return
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the letters are taken
            self._put(error)

    def _put(self, found: list[_Ref] | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                self._ahead.put(found, timeout=0.2)
            except queues.Full:
                continue
            return

    def look(self, limit: int | None) -> Iterator[DeadLetter]:
        met = 0
        for _, page in self._matching():
            for one in page:
                if met == limit:
                    return
                met += 1
                yield one.whole

    # Taking.

    def _next(self, most: int) -> list[_Ref]:
        while len(self._refs) < most and not self._finished:
            if self._scanner is None:
                self._scanner = threading.Thread(target=self._scan, name="semel-redrive-scan", daemon=True)
                self._scanner.start()
            if self._refs and self._ahead.empty():
                break  # rather send what there is than wait for more
            found = self._ahead.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                self._finished = True
                self.job.total = self.job.counts.matched
            else:
                self.job.add(matched=sum(ref.id not in self._gone for ref in found))
                self._refs.extend(found)
        return [self._refs.popleft() for _ in range(min(most, len(self._refs)))]

    def take(self, most: int) -> list[DeadLetter]:
        while refs := self._next(min(most, MOST)):
            if letters := self._receive(refs):
                return letters
        return []

    def first(self, count: int, choose: Callable[[Sequence[DeadLetter], int], list[DeadLetter]]) -> list[DeadLetter]:
        seen = list(self.look(_CANARY_LOOK))
        chosen = choose([letter for letter in self._heads(seen) if letter.state == "visible"], count)
        wanted = [letter.id for letter in chosen]
        if not wanted:
            return []
        refs = [_ref(message) for message in self._admin.messages(self.source.name, ids=wanted, bodies=False)]
        self.job.add(matched=len(wanted))
        return self._receive(refs)

    def _receive(self, refs: Sequence[_Ref]) -> list[DeadLetter]:
        wanted, skipped = [], 0
        for ref in refs:
            if ref.id in self._gone:
                continue
            if not ref.visible or ref.group in self.blocked:
                self._block(ref.group)
                self._elsewhere += not ref.visible
                skipped += 1
            else:
                wanted.append(ref)
        got: dict[str, Received] = {}
        if wanted:
            ids, places = [ref.id for ref in wanted], [ref.place for ref in wanted]
            received = self._admin.receive_ids(self.source.name, ids, places=places, visibility=VISIBILITY)
            got = {one.message_id: one for one in received}
        taken: list[DeadLetter] = []
        back: list[DeadLetter] = []
        for ref in wanted:
            if ref.id not in got:  # somebody else was faster
                self._block(ref.group)
                self._elsewhere += 1
                skipped += 1
                continue
            letter = DeadLetter.of(got[ref.id], self.source.name)
            (back if ref.group in self.blocked else taken).append(letter)
        self.hand.add(taken)
        self.hand.add(back)
        self.hand.give_back(back)
        if skipped or back:
            self.job.add(skipped=skipped + len(back))
        return taken

    def _block(self, group: str) -> None:
        if self.source.fifo:
            self.blocked.add(group)

    def refuse(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            self._block(letter.group)
        self.hand.give_back(letters)

    def _again(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """A receipt that has expired: the letter is received anew, if nobody else has it, only to be deleted."""
        try:
            received = self._admin.receive_ids(self.source.name, [letter.id for letter in letters])
        except SqsError:
            return letters
        self.hand.add(DeadLetter.of(one, self.source.name) for one in received)
        return letters

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        if self._scanner is not None:
            self._scanner.join()
        super().__exit__(*exception)
        if self._elsewhere:
            self.job.say(f"{self._elsewhere} letters were in somebody else's hand, and were left there")


def _ref(message: dict[str, Any]) -> _Ref:
    group = message["Attributes"].get("MessageGroupId", "")
    return _Ref(message["MessageId"], message["Place"], group, message["State"] == "visible")


class ByReceiving(Taker):
    """From SQS itself, or from anything that speaks like it."""

    def __init__(
        self,
        source: Queue,
        choice: Choice,
        job: Job,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        wait: int = _WAIT,
        max_held: int = MAX_HELD,
    ) -> None:
        super().__init__(source, choice, job, monotonic)
        self._wait, self._max_held = wait, max_held
        self._ready: deque[DeadLetter] = deque()  # in hand, and not yet taken
        self._empty = 0
        self._seen: set[str] = set()
        self._late = 0
        self.copies: Collection[str] = frozenset()  # MessageIds of what was sent: back here, they are not ours to take

    def take(self, most: int) -> list[DeadLetter]:
        while True:
            self._gather(most)
            taken = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
            stay = [letter for letter in taken if letter.group in self.blocked]
            if stay:
                self.job.add(skipped=len(stay))
                self.hand.rest(stay)
            if len(stay) < len(taken) or not taken:
                return [letter for letter in taken if letter.group not in self.blocked]

    def _gather(self, most: int) -> None:
        """Receives until so many are ready. Rather fewer than to wait: in a FIFO queue the next come when these go."""
        while len(self._ready) < most and self._more() and not (self._empty and self._ready):
            pass
        if self._ready:
            self._empty = 0

    def _more(self) -> bool:
        """Receives once. False: there is nothing more to be had."""
        if self._empty >= _EMPTY or (self.choice.ids and self.choice.ids <= self._seen):
            return False
        try:
            if len(self.hand) >= self._max_held:
                raise OverLimit("")
            received = self.source.receive(wait=self._wait, visibility=VISIBILITY)
        except OverLimit:
            self.job.say(
                f"{len(self.hand)} letters of {self.source.name} are hidden at once, and SQS hides no more: "
                "those beyond were not looked at. Narrow the filter, or send back or drop some of the others first."
            )
            self._empty = _EMPTY
            return False
        self._empty = 0 if received else self._empty + 1
        self._sort([DeadLetter.of(one, self.source.name) for one in received])
        return True

    def _sort(self, letters: Sequence[DeadLetter]) -> None:
        old = [letter for letter in letters if letter.id in self._gone]
        if old:  # its delete was lost: what is sent already is not sent again
            self._delete(old)
        new = [letter for letter in letters if letter.id not in self._seen]
        self.hand.add(letter for letter in letters if letter.id not in self._gone)
        self._seen.update(letter.id for letter in letters)
        unwanted = []
        for letter in new:
            if self._came_later(letter):
                self._late += 1
                unwanted.append(letter)
            elif self.choice.matches(letter):
                self._ready.append(letter)
            else:
                unwanted.append(letter)
        self.hand.rest(unwanted)
        self.job.add(looked_at=len(new), matched=len(new) - len(unwanted))

    def _came_later(self, letter: DeadLetter) -> bool:
        return letter.sent >= self.choice.started or letter.id in self.copies or letter.original_id in self.copies

    def first(self, count: int, choose: Callable[[Sequence[DeadLetter], int], list[DeadLetter]]) -> list[DeadLetter]:
        self._gather(_CANARY_TAKE)
        chosen = choose(self._heads(self._ready), count)
        wanted = {letter.id for letter in chosen}
        self._ready = deque(letter for letter in self._ready if letter.id not in wanted)
        return chosen

    def look(self, limit: int | None) -> Iterator[DeadLetter]:
        met = 0
        while met != limit and (letters := self.take(10 if limit is None else min(10, limit - met))):
            met += len(letters)
            self.hand.rest(letters)
            yield from letters

    def refuse(self, letters: Sequence[DeadLetter]) -> None:
        if self.source.fifo:
            self.blocked.update(letter.group for letter in letters)
        self.hand.rest(letters)

    def __exit__(self, *exception: object) -> None:
        if self.source.fifo and self._empty >= _EMPTY and len(self.hand):
            self._tell_of_those_behind()
        super().__exit__(*exception)
        if self._late:
            self.job.say(f"{self._late} letters came after the start and were not touched")

    def _tell_of_those_behind(self) -> None:
        with contextlib.suppress(SqsError):
            name = "ApproximateNumberOfMessages"
            waiting = int(self.source.attributes(name).get(name, 0))
            if waiting:
                self.job.say(
                    f"about {waiting} letters were not looked at: SQS shows the next of a FIFO group only when those "
                    "before it are gone, and letters that stay stand before them"
                )


def taker(
    client: Client, source: Queue, choice: Choice, job: Job, monotonic: Callable[[], float] = time.monotonic
) -> Taker:
    """The way that the endpoint allows."""
    admin = Admin.of(client)
    if admin is not None:
        return ByIds(admin, source, choice, job, monotonic)
    return ByReceiving(source, choice, job, monotonic)
