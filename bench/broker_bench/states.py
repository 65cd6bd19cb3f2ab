"""The rows that measure states, not throughput: deep queues, idle polls, starts with and without data, memory."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import threading
import time

from broker_bench.bench import Bench, Cells, check_count, check_honest, counts
from broker_bench.load import Generator
from broker_bench.results import KEEPS_NOTHING, STORES_NOTHING, Figure, Row, Unit, at_most, ratio
from broker_bench.targets import Semel, Server, Target
from broker_bench.wire import Session, WrongAnswer, batch_entries, handles_in, message_body
from broker_bench.work import Polls, ReceiveDelete, Receives

MEMORY_DELAY = 1.0  # seconds from the end of a fill until memory is measured


def start(bench: Bench) -> list[Row]:
    """From the start of the process to its first successful answer. The first start (cold files) is not counted."""
    settings = bench.settings
    times: dict[str, Figure] = {}
    memory: dict[str, Figure] = {}
    cells = Cells(bench, "start")
    for target in bench.targets:
        ready, answered, resident = [], [], (0.0, 0.0)
        with cells.guard(target):
            rounds = settings.starts if isinstance(target, Semel) else settings.peer_starts
            for round_ in range(rounds + 1):
                bench.progress.doing(f"start {round_}/{rounds}: {target.label}")
                with Server(target) as server:
                    if round_:
                        ready.append(server.ready_seconds)
                        answered.append(server.answer_seconds)
                    if round_ == rounds:
                        time.sleep(MEMORY_DELAY)
                        resident = server.memory()
            note = f"ready line after {statistics.median(ready):.3f} s" if target.says_ready else ""
            times[target.name] = Figure(tuple(answered), note=note)
            memory[target.name] = Figure((resident[0],), memory_mb=resident[0], peak_mb=resident[1])
            bench.progress.step(f"start: {target.label} {statistics.median(answered):.3f} s, {resident[0]:.0f} MB")
        cells.step_if_failed(target)
    times |= cells.failures
    memory |= cells.failures
    seconds = times["semel"].value if "semel" in times else None
    megabytes = memory["semel"].value if "semel" in memory else None
    return [
        Row("start", "start to ready and first answer", Unit.SECONDS, times, (at_most("≤ 0.4 s", 0.4, seconds, "s"),)),
        Row("start", "memory, idle", Unit.MEGABYTES, memory, (at_most("≤ 60 MB", 60, megabytes, "MB"),)),
    ]


def restart(bench: Bench) -> list[Row]:
    """From the start of the process to its first answered ReceiveMessage, with a full queue in its folder."""
    settings = bench.settings
    rows: list[Row] = []
    for fifo in (False, True):
        times: dict[str, Figure] = {}
        memory: dict[str, Figure] = {}
        cells = Cells(bench, "restart")
        for target in bench.targets:
            keeping = target.keeping()
            if keeping is None:
                times[target.name] = memory[target.name] = Figure(note=KEEPS_NOTHING)
                continue
            with cells.guard(target):
                times[target.name], memory[target.name] = _restarts(bench, keeping, fifo)
                seconds, megabytes = times[target.name].value, memory[target.name].value
                bench.progress.step(f"restart: {target.label} {seconds:.3f} s, {megabytes:.0f} MB")
            cells.step_if_failed(target)
        times |= cells.failures
        memory |= cells.failures
        seconds, megabytes = (figures["semel"].value if "semel" in figures else None for figures in (times, memory))
        waiting = f"{settings.many:,} {'FIFO ' if fifo else ''}messages of {settings.many_bytes:,} B"
        bars = () if fifo else (at_most("≤ 2 s", 2.0, seconds, "s"),)
        rows += [
            Row("restart", f"start to first receive, {waiting}", Unit.SECONDS, times, bars),
            Row(
                "restart", f"memory then, {waiting}", Unit.MEGABYTES, memory,
                (at_most("≤ 200 MB", 200, megabytes, "MB"),),
            ),
        ]  # fmt: skip
    return rows


def _restarts(bench: Bench, target: Target, fifo: bool) -> tuple[Figure, Figure]:
    """Figures of one target: seconds, and memory right after the first answer. Its files are in the page cache."""
    settings = bench.settings
    semel = isinstance(target, Semel)
    with Server(target) as server, server.watched():
        session = Session(server.address)
        queue_url = bench.queue(session, fifo)
        bench.progress.doing(f"restart: {target.label} gets {settings.many:,} messages")
        most = settings.fill if semel else settings.peer_fill
        filled = bench.fill(server, session, queue_url, settings.many, settings.many_bytes, most)
        session.close()
        amount = None if filled >= settings.many else filled
        receive = ("ReceiveMessage", {"QueueUrl": queue_url})

        def again(*, kill: bool = False) -> float:
            if len(server.restart(receive, kill=kill).get("Messages", ())) != 1:
                raise WrongAnswer("the first receive after a restart gave no message")
            return server.answer_seconds

        note = f"{again(kill=True):.3f} s when it was killed right after the fill" if semel else ""
        samples: list[tuple[float, tuple[float, float]]] = []
        for round_ in range(settings.restarts if semel else min(2, settings.restarts)):
            bench.progress.doing(f"restart {round_ + 1}: {target.label}")
            samples.append((again(), server.memory()))
        session = Session(server.address)
        check_count(session, queue_url, filled)
        session.close()
    times = Figure(tuple(seconds for seconds, _ in samples), amount=amount, note=note)
    resident = tuple(now for _, (now, _) in samples)
    peak = max(highest for _, (_, highest) in samples)
    return times, Figure(resident, amount=amount, memory_mb=statistics.median(resident), peak_mb=peak)


def idle(bench: Bench) -> list[Row]:
    """CPU of a server with 200 waiting long polls, each renewed when it ends. The window is longer than a poll."""
    settings = bench.settings
    wait = min(20, int(settings.idle * 0.9))
    cells = Cells(bench, "idle")
    figures = {target.name: Figure(note=STORES_NOTHING) for target in bench.targets if not target.stores}
    for target in bench.storing:
        bench.progress.doing(f"idle: {target.label} with {settings.polls} long polls, {settings.idle + 2:.0f} s")
        with cells.guard(target), Server(target) as server, server.watched():
            check_honest(bench, server)
            session = Session(server.address)
            polls = Polls(session.requests, bench.queue(session), wait)
            window = Generator(server.address, polls, settings.polls, server.cpu).run(1.5, settings.idle, drain=False)
            share = window.server_cpu / window.seconds * 100
            note = f"a send wakes a poll in {_wake_ms(bench, server):.1f} ms"
            if polls.messages > settings.polls * 1.5:
                note = f"polls did not wait: {polls.messages} ended in {settings.idle:.0f} s; {note}"
            figures[target.name] = Figure((share,), note=note, others_share=window.others_share)
            bench.progress.step(f"idle: {target.label} {share:.2f} % of a core; {note}")
        cells.step_if_failed(target)
    figures |= cells.failures
    reached = figures["semel"].value if "semel" in figures else None
    bar = at_most("< 1 % CPU", 1.0, reached, "%")
    return [Row("idle", f"idle with {settings.polls} parked long polls", Unit.PERCENT, figures, (bar,))]


def _wake_ms(bench: Bench, server: Server) -> float:
    """Median time from a send to the answer of a long poll that was waiting for it."""
    sender, receiver = Session(server.address), Session(server.address)
    queue_url = bench.queue(sender)
    poll = receiver.requests.make("ReceiveMessage", {"QueueUrl": queue_url, "WaitTimeSeconds": 5})
    took = []
    for number in range(5):
        woken: list[float] = []

        def wait(woken: list[float] = woken) -> None:
            with contextlib.suppress(WrongAnswer, OSError):
                if handles_in(receiver.exchange(poll)):
                    woken.append(time.perf_counter())

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.1)
        sent = time.perf_counter()
        sender.call("SendMessage", QueueUrl=queue_url, MessageBody=str(number))
        waiting.join()
        if not woken:
            raise WrongAnswer("a long poll missed the message that was sent while it waited")
        took.append((woken[0] - sent) * 1e3)
    return statistics.median(took)


class Depth:
    """Time of one receive(10) at a constant depth: received messages are deleted and sent again, outside the timing."""

    def __init__(self, bench: Bench, server: Server, queue_url: str) -> None:
        self.session = Session(server.address)
        self.receive = self.session.requests.make(
            "ReceiveMessage", {"QueueUrl": queue_url, "MaxNumberOfMessages": 10}
        )  # fmt: skip
        bodies = [message_body(bench.settings.many_bytes, number) for number in range(10)]
        self.send = self.session.requests.make(
            "SendMessageBatch", {"QueueUrl": queue_url, "Entries": batch_entries(bodies)}
        )  # fmt: skip
        self.deletes = ReceiveDelete(self.session.requests, queue_url)

    def measure(self, seconds: float) -> float:
        """The median in microseconds, of at least two calls."""
        exchange, clock = self.session.exchange, time.perf_counter
        took: list[float] = []
        end = clock() + seconds
        while clock() < end or len(took) < 2:
            began = clock()
            answer = exchange(self.receive)
            took.append(clock() - began)
            handles = handles_in(answer)
            if len(handles) != 10:
                raise WrongAnswer(f"a receive of 10 gave {len(handles)}")
            exchange(self.deletes.delete(handles))
            exchange(self.send)
        return statistics.median(took) * 1e6


def depth_and_memory(bench: Bench) -> list[Row]:
    """One server for each state, so that a small queue is measured in a small database. The states take turns."""
    settings = bench.settings
    cells = Cells(bench, "depth")
    figures: dict[str, list[Figure]] = {
        target.name: [Figure(note=STORES_NOTHING)] * 4 for target in bench.targets if not target.stores
    }
    for target in bench.storing:
        with cells.guard(target):
            figures[target.name] = _states(bench, target)
            few, many, flying, held = (figure.value or 0.0 for figure in figures[target.name])
            bench.progress.step(
                f"depth: {target.label} {few:.0f} / {many:.0f} / {flying:.0f} µs per receive, {held:.0f} MB", 3
            )
        cells.step_if_failed(target, 3)
    for name, failure in cells.failures.items():
        figures[name] = [failure] * 4
    few_row, many_row, flying_row, memory_row = (
        {name: figures[name][column] for name in (target.name for target in bench.targets)} for column in range(4)
    )
    base, many_us, flying_us, megabytes = (
        row["semel"].value if "semel" in row else None for row in (few_row, many_row, flying_row, memory_row)
    )
    limit = f"≤ 1.5 × the time with {settings.few:,} queued"
    return [
        Row("depth", f"receive(10), {settings.few:,} queued", Unit.MICROSECONDS, few_row),
        Row(
            "depth", f"receive(10), {settings.many:,} queued", Unit.MICROSECONDS, many_row,
            (at_most(limit, 1.5, ratio(many_us, base), "×"),),
        ),
        Row(
            "depth", f"receive(10), {settings.in_flight:,} in flight", Unit.MICROSECONDS, flying_row,
            (at_most(limit, 1.5, ratio(flying_us, base), "×"),),
        ),
        Row(
            "memory", f"memory, {settings.many:,} messages of {settings.many_bytes:,} B", Unit.MEGABYTES, memory_row,
            (at_most("≤ 200 MB", 200, megabytes, "MB"),),
        ),
    ]  # fmt: skip


def _states(bench: Bench, target: Target) -> list[Figure]:
    """Figures of one target: few queued, many queued, many in flight, memory with many queued."""
    settings = bench.settings
    most = settings.fill if isinstance(target, Semel) else settings.peer_fill
    with contextlib.ExitStack() as stack:
        depths: list[Depth] = []
        checks: list[tuple[Session, str, int]] = []
        amounts: list[int] = []
        memory = (0.0, 0.0)
        for state, amount in enumerate((settings.few, settings.many, settings.in_flight + settings.few)):
            server = stack.enter_context(Server(target))
            stack.enter_context(server.watched())
            check_honest(bench, server)
            session = Session(server.address)
            queue_url = bench.queue(session)
            bench.progress.doing(f"depth: {target.label} gets {amount:,} messages of {settings.many_bytes:,} bytes")
            filled = bench.fill(server, session, queue_url, amount, settings.many_bytes, most)
            if state == 1:
                time.sleep(MEMORY_DELAY)
                memory = server.memory()
            if state == 2:
                work = Receives(session.requests, queue_url, filled - min(settings.few, filled // 2))
                bench.through(server, work, most)
                amounts.append(counts(session, queue_url)[1])
            else:
                amounts.append(filled)
            depths.append(Depth(bench, server, queue_url))
            checks.append((session, queue_url, filled))
        medians: list[list[float]] = [[], [], []]
        for _ in range(settings.rounds if isinstance(target, Semel) else min(2, settings.rounds)):
            for depth, times in zip(depths, medians, strict=True):
                times.append(depth.measure(settings.depth))
        for session, queue_url, filled in checks:
            session.close()
            check_count(session, queue_url, filled)
    asked = (settings.few, settings.many, settings.in_flight)
    figures = [
        Figure(tuple(times), amount=None if amount >= ask else amount)
        for times, amount, ask in zip(medians, amounts, asked, strict=True)
    ]
    held = Figure((memory[0],), memory_mb=memory[0], peak_mb=memory[1])
    return [*figures, dataclasses.replace(held, amount=figures[1].amount)]
