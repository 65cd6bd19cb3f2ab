"""The model of claims: one message, one key, two workers. They claim, extend, record, release and delete, and faults
may happen at any step.

The rules, for both modes:
1. A message is deleted only after its outcome is recorded.
2. A key's fence only grows.
3. What is recorded stays recorded.
4. Only the newest fence writes: no record, release or extension by a worker whose claim was taken over.
5. One worker at most holds the newest fence.
6. A key that is recorded as done has its effect.
7. The heartbeat has stopped before the message is deleted, hidden or shown.
8. From every state, the outcome can still be recorded and the message deleted: no key is stuck for ever.

In transaction mode, the effect exists exactly once if the key is done, and otherwise not at all. In lease mode, no two
effects have the same fence, so their receiver can order them and refuse a late one.

The table in semel.consumer.lifecycle decides what happens to the message, a real ledger what happens to its key. What
SQS and time may do is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from models.explorer import Violated
from models.ledger_calls import Entry, LedgerCalls
from semel.consumer import lifecycle
from semel.consumer.lifecycle import BEATING, ENDS, LEASED, Action, Event, ImpossibleStep, Next, State
from semel.ledger.contract import Done, Held, Status, Won

VISIBLE, HIDDEN, DELETED = "visible", "hidden", "deleted"  # or the name of the worker that has it in flight
AT_WORK: Final = frozenset({State.WORKING, State.LOST_AT_WORK})
_A = Action
_LOCAL: Final = frozenset({_A.NOTIFY_LOST, _A.STOP_BEAT, _A.END})  # nobody but the worker itself can see these
_MOVES: Final = frozenset({_A.DELETE, _A.HIDE_FOR_LEASE, _A.HIDE_FOR_RETRY, _A.SHOW})


class Faults(NamedTuple):
    """How often each fault may still happen. `redelivery`: a message becomes visible although its worker extends it, or
    is delivered after its deletion. `pause`: a worker stands still until its lease is over. `lost`: a request or an
    answer. `release`: a handler fails, or a worker gives up its claim. `total`: all of them together."""

    crash: int = 1
    redelivery: int = 1
    pause: int = 1
    lost: int = 1
    release: int = 1
    total: int = 5

    def less(self, fault: str) -> Faults:
        """What is left after this fault. With a `total` of 0, all are 0, so that fewer states differ."""
        if self.total == 1:
            return Faults(0, 0, 0, 0, 0, 0)
        return self._replace(**{fault: getattr(self, fault) - 1, "total": self.total - 1})


class Worker(NamedTuple):
    """`todo`: its next actions, in order. `answer`: the answer to its claim, which has not arrived yet. `acted`: its
    handler's effect has happened."""

    name: str
    alive: bool = True
    life: State | None = None
    todo: tuple[Action, ...] = ()
    fence: int = 0
    beating: bool = False
    answer: tuple[Event, int] | None = None
    acted: bool = False


class World(NamedTuple):
    """`effects`: the fences under which the effect has happened, in order."""

    workers: tuple[Worker, Worker]
    faults: Faults
    message: str = VISIBLE
    entry: Entry | None = None
    effects: tuple[int, ...] = ()

    def having(self, worker: Worker) -> World:
        first, second = self.workers
        return self._replace(workers=(worker, second) if worker.name == first.name else (first, worker))

    def after_fault(self, fault: str) -> World:
        return self._replace(faults=self.faults.less(fault))


Steps = Iterator[tuple[str, World]]


class Claims:
    """The model. `transaction`: the handler's effect and the record are one commit."""

    def __init__(
        self,
        *,
        transaction: bool,
        faults: Faults = Faults(),  # noqa: B008  it is a value
        calls: LedgerCalls | None = None,
        step: Callable[[State, Event], Next] = lifecycle.step,
    ) -> None:
        self.transaction = transaction
        self._faults = faults
        self.calls = calls or LedgerCalls()
        self._step = step

    def initial(self) -> World:
        return World((Worker("A"), Worker("B")), self._faults)

    def is_final(self, world: World) -> bool:
        recorded = world.entry is not None and world.entry.recorded
        return recorded and world.message == DELETED and all(w.life is None or not w.alive for w in world.workers)

    def describe(self, world: World) -> str:
        entry = world.entry
        key = "unknown" if entry is None else f"{entry.status} {entry.fence}"
        if entry is not None and entry.status is Status.CLAIMED and not entry.leased:
            key += " (lease over)"
        lives = [
            f"{w.name} {'-' if w.life is None else w.life.name}{'' if w.alive else ' dead'}" for w in world.workers
        ]
        return f"message {world.message}; key {key}; {', '.join(lives)}; effects {list(world.effects)}"

    # The rules.

    def broken(self, before: World, after: World) -> str | None:
        old, new = before.entry, after.entry
        recorded = new is not None and new.recorded
        if after.message == DELETED and not recorded:
            return "a message is deleted only after its outcome is recorded"
        if old is not None and (new is None or new.fence < old.fence):
            return "a key's fence only grows"
        if old is not None and old.recorded and new != old:
            return "what is recorded stays recorded"
        if new is not None and sum(w.alive and w.fence == new.fence for w in after.workers) > 1:
            return "one worker at most holds the newest fence"
        if self.transaction:
            return (
                None if len(after.effects) == recorded else "in a transaction, the effect is there once if it is done"
            )
        if len(set(after.effects)) < len(after.effects):
            return "no two effects bear the same fence"
        return (
            None if new is None or not recorded or new.fence in after.effects else "a key that is done has its effect"
        )

    def _written(self, world: World, entry: Entry | None, fence: int) -> World:
        """A worker that showed this fence has written to the ledger."""
        if entry != world.entry and (world.entry is None or world.entry.fence != fence):
            raise Violated(f"only the newest fence writes, and fence {fence} did")
        return world._replace(entry=entry)

    # What may happen.

    def steps(self, world: World) -> Steps:
        try:
            yield from self._of_time(world)
            for worker in world.workers:
                if worker.alive:
                    yield from self._of_worker(world, worker)
                    yield from self._of_heartbeat(world, worker)
                    if world.faults.crash and worker.life is not None:
                        yield f"{worker.name} crashes", world.after_fault("crash").having(worker._replace(alive=False))
        except ImpossibleStep as error:
            raise Violated(f"the table of states has no answer: {error}") from error

    def _of_time(self, world: World) -> Steps:
        message, entry = world.message, world.entry
        if message == HIDDEN:
            yield "the message is shown again", world._replace(message=VISIBLE)
        elif message == DELETED:
            if world.faults.redelivery:
                yield "SQS delivers it though deleted", world.after_fault("redelivery")._replace(message=VISIBLE)
        elif message != VISIBLE:
            kept = any(w.name == message and w.alive and w.beating for w in world.workers)
            shown = world._replace(message=VISIBLE)
            if not kept:
                yield "its visibility ends", shown
            elif world.faults.redelivery:
                yield f"its visibility ends while {message} has it", shown.after_fault("redelivery")
        if entry is not None and entry.leased:
            over = world._replace(entry=entry._replace(leased=False))
            holder = next((w for w in world.workers if w.alive and self._keeps(w, entry.fence)), None)
            if holder is None:
                yield "the lease runs out", over
            elif world.faults.pause:
                yield f"{holder.name} stands still until its lease is over", over.after_fault("pause")

    def _keeps(self, worker: Worker, fence: int) -> bool:
        """Whether this worker keeps the lease of this fence alive, unless it stands still."""
        if worker.answer is not None:
            return worker.answer == (Event.WON, fence)
        return worker.fence == fence and worker.beating and worker.life in LEASED

    def _of_worker(self, world: World, worker: Worker) -> Steps:
        life, name = worker.life, worker.name
        if life is None:
            if world.message == VISIBLE:
                received = worker._replace(life=State.RECEIVED, beating=True)
                yield f"{name} receives the message", world._replace(message=name).having(received)
        elif worker.answer is not None:
            event, fence = worker.answer
            yield self._happens(world, worker._replace(answer=None, fence=fence), event)
        elif worker.todo:
            yield from self._act(world, worker, worker.todo[0])
        elif life is State.RECEIVED:
            yield from self._claim(world, worker)
        elif life is State.CLAIMED:
            yield self._happens(world, worker, Event.STARTED)
            if world.faults.release:
                yield self._happens(world.after_fault("release"), worker, Event.GIVE_UP)
        elif life in AT_WORK:
            yield from self._work(world, worker)

    def _claim(self, world: World, worker: Worker) -> Steps:
        """Each call has a new claimant name, one that the entry does not have."""
        bears = "" if world.entry is None else world.entry.claimant
        claimant = next(name for name in (f"{worker.name}1", f"{worker.name}2") if name != bears)
        entry, answer = self.calls.claim(world.entry, claimant)
        match answer:
            case Won(claim):
                coming = Event.WON, claim.fence
            case Done():
                coming = Event.FOUND_DONE, 0
            case Held():
                coming = Event.HELD, 0
            case _:
                raise AssertionError(answer)
        asked = world._replace(entry=entry)
        yield f"{worker.name} asks for the key: {coming[0].name}", asked.having(worker._replace(answer=coming))
        if world.faults.lost:
            lost = self._happens(asked.after_fault("lost"), worker, Event.LEDGER_DOWN)
            yield f"{worker.name} asks for the key and gets no answer", lost[1]

    def _work(self, world: World, worker: Worker) -> Steps:
        name = worker.name
        if self.transaction:
            entry, effects = self.calls.commit(world.entry, worker.fence)
            done = self._written(world, entry, worker.fence)._replace(effects=world.effects + (worker.fence,) * effects)
            yield self._happens(done, worker, Event.COMMITTED if effects else Event.FENCED)
            if world.faults.lost:  # the worker looks the outcome up; if that fails too, the next delivery finds it
                unknown = self._happens(done.after_fault("lost"), worker, Event.LEDGER_DOWN)
                yield f"{name} commits and gets no answer", unknown[1]
        elif worker.acted:
            yield self._happens(world, worker, Event.SUCCEEDED)
        else:
            acted = world._replace(effects=(*world.effects, worker.fence)).having(worker._replace(acted=True))
            yield f"{name}'s effect happens", acted
        if world.faults.release:
            yield self._happens(world.after_fault("release"), worker, Event.FAILED)

    def _of_heartbeat(self, world: World, worker: Worker) -> Steps:
        if not worker.beating or worker.life not in BEATING:
            return
        name, entry = worker.name, world.entry
        if worker.life in LEASED and entry is not None:
            if entry.fence == worker.fence and entry.status is Status.CLAIMED and not entry.leased:
                yield self._happens(world, worker, Event.LOST)  # the extension was not confirmed in time
                extended, _ = self.calls.extend(entry, worker.fence)
                yield f"{name} extends its lease", self._written(world, extended, worker.fence)
            elif not self.calls.extend(entry, worker.fence)[1]:
                yield self._happens(world, worker, Event.LOST)
        if world.message != name:
            yield self._happens(world, worker, Event.VISIBLE)

    # What follows.

    def _happens(self, world: World, worker: Worker, event: Event) -> tuple[str, World]:
        assert worker.life is not None
        life, actions = self._step(worker.life, event)
        after = self._tidy(worker._replace(life=life, todo=worker.todo + actions))
        return f"{worker.name}: {event.name}", world.having(after)

    def _tidy(self, worker: Worker) -> Worker:
        """Does at once the actions that only the worker itself can see. A worker that has ended its message can receive
        again."""
        while worker.todo and worker.todo[0] in _LOCAL:
            beating = worker.beating and worker.todo[0] is not _A.STOP_BEAT
            worker = worker._replace(todo=worker.todo[1:], beating=beating)
        ended = worker.life in ENDS and not worker.todo and worker.answer is None
        return Worker(worker.name) if ended else worker

    def _act(self, world: World, worker: Worker, action: Action) -> Steps:
        name, fence = worker.name, worker.fence
        if action in _MOVES and worker.beating:
            raise Violated(f"the heartbeat has stopped before the message is moved, but not before {action.name}")
        rest = worker._replace(todo=worker.todo[1:])
        match action:
            case _A.RECORD:
                entry, is_recorded = self.calls.record(world.entry, fence)
                done = self._written(world, entry, fence)
                yield self._happens(done, rest, Event.RECORDED if is_recorded else Event.FENCED)
                if world.faults.lost:  # the record stays in `todo`: it is repeated for as long as it takes
                    yield f"{name} records and gets no answer", done.after_fault("lost")
            case _A.GIVE_BACK | _A.GIVE_BACK_UNTRIED:
                entry, _ = self.calls.release(world.entry, fence)
                gone = self._tidy(rest)
                yield f"{name} releases its claim", self._written(world, entry, fence).having(gone)
                if world.faults.lost:
                    yield f"{name}'s release is lost", world.after_fault("lost").having(gone)
            case _A.DELETE:
                yield self._happens(world._replace(message=DELETED), rest, Event.DELETED)
                if world.faults.lost:
                    lost = self._happens(world.after_fault("lost"), rest, Event.DELETED)
                    yield f"{name}'s delete is lost", lost[1]
            case _A.HIDE_FOR_LEASE | _A.HIDE_FOR_RETRY:
                ours = world._replace(message=HIDDEN) if world.message == name else world
                yield f"{name} hides the message", ours.having(self._tidy(rest))
            case _A.SHOW:  # on a Standard queue, an older receipt handle works, too
                shown = world._replace(message=VISIBLE) if world.message in ("A", "B") else world
                yield f"{name} shows the message", shown.having(self._tidy(rest))
            case _:
                raise AssertionError(action)
