"""The rows that count messages per second: send, batch, receive and delete, FIFO, many queues at once."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable

from broker_bench.bench import Bench, Cells, check_count, check_total, counts, take_turns
from broker_bench.load import Window, Work
from broker_bench.results import STORES_NOTHING, Figure, Row, Unit, at_least, from_windows, ratio
from broker_bench.targets import Peer, Server, Target
from broker_bench.wire import Requests, Session
from broker_bench.work import FifoSends, Mixed, ReceiveDelete, Sends

FIRST_FILLS = (100, 1_000, 10_000)  # messages for a first estimate of how fast a target receives and deletes
LARGEST_FILL = 400_000
FILL_LIMIT = 5.0  # seconds that filling a queue may take; a slow target gets only what it accepts in that time


def send(bench: Bench) -> list[Row]:
    size, connections = bench.settings.body_bytes, bench.settings.connections
    figures = _sending(bench, "send", lambda requests, url: Sends(requests, url, size, per_call=1))
    semel = _value(figures, "semel")
    echo = ratio(semel, _value(figures, "echo"))
    bars = (
        at_least("≥ 55 % of the echo ceiling", 55, echo * 100 if echo is not None else None, "%"),
        at_least("≥ 5 × MiniStack", 5, ratio(semel, _value(figures, "ministack")), "×"),
        at_least("≥ 50 × moto", 50, ratio(semel, _value(figures, "moto")), "×"),
    )
    return [Row("send", f"SendMessage, {connections} connections", Unit.RATE, figures, bars)]


def batch(bench: Bench) -> list[Row]:
    size = bench.settings.body_bytes
    figures = _sending(bench, "batch", lambda requests, url: Sends(requests, url, size, per_call=10))
    bar = at_least("≥ 70,000 messages/s", 70_000, _value(figures, "semel"), "messages/s")
    return [Row("batch", "SendMessageBatch(10)", Unit.RATE, figures, (bar,))]


def fifo(bench: Bench) -> list[Row]:
    size = bench.settings.body_bytes
    figures = _sending(bench, "fifo", lambda requests, url: FifoSends(requests, url, size), fifo=True)
    bar = at_least("≥ 35,000 messages/s", 35_000, _value(figures, "semel"), "messages/s")
    return [Row("fifo", "FIFO SendMessageBatch(10), 1,000 groups", Unit.RATE, figures, (bar,))]


def receive(bench: Bench) -> list[Row]:
    figures = _consuming(bench, "receive")
    bar = at_least("≥ 40,000 messages/s", 40_000, _value(figures, "semel"), "messages/s")
    return [Row("receive", "receive(10) + DeleteMessageBatch(10)", Unit.RATE, figures, (bar,))]


def fifo_receive(bench: Bench) -> list[Row]:
    figures = _consuming(bench, "fifo-receive", fifo=True)
    bar = at_least("≥ 25,000 messages/s", 25_000, _value(figures, "semel"), "messages/s")
    title = "FIFO receive(10) + DeleteMessageBatch(10), 1,000 groups"
    return [Row("fifo-receive", title, Unit.RATE, figures, (bar,))]


def queues(bench: Bench) -> list[Row]:
    """The same mixed work on one queue and on many, one right after the other, so that noise affects both equally."""
    settings = bench.settings
    cells = Cells(bench, "queues")
    works: dict[str, tuple[Mixed, Mixed]] = {}
    urls: dict[str, tuple[list[str], list[str]]] = {}
    alone: dict[str, list[Window]] = {target.name: [] for target in bench.storing}

    def prepare(server: Server) -> None:
        session = Session(server.address)
        one_queue, many_queues = ([bench.queue(session) for _ in range(amount)] for amount in (1, settings.queues))
        urls[server.target.name] = one_queue, many_queues
        works[server.target.name] = (
            Mixed(session.requests, one_queue, settings.body_bytes, settings.connections),
            Mixed(session.requests, many_queues, settings.body_bytes, settings.connections),
        )
        session.close()

    def turn(server: Server) -> Window:
        name = server.target.name
        before = len(alone[name]) % 2 == 0  # the order alternates from round to round
        if before:
            alone[name].append(load(server, 0))
        window = load(server, 1)
        if not before:
            alone[name].append(load(server, 0))
        return window

    def load(server: Server, which: int) -> Window:
        name = server.target.name
        work = works[name][which]
        window = bench.load(server, work, settings.warm_up)
        session = Session(server.address)
        there = sum(sum(counts(session, url)) for url in urls[name][which])
        session.close()
        check_total(there, work.sent - work.messages, tolerate_more=isinstance(server.target, Peer))
        return window

    windows, memory = take_turns(bench, cells, bench.storing, prepare, turn)
    one_row, many_row = (_figures(bench.targets, cells, by_target, memory) for by_target in (alone, windows))
    pairs = zip(windows.get("semel", ()), alone.get("semel", ()), strict=False)
    ratios = [many.rate / single.rate for many, single in pairs if single.rate]
    bar = at_least("≥ 0.9 of the same on one queue", 0.9, statistics.median(ratios) if ratios else None, "×")
    title = "SendMessageBatch(10), receive(10), delete(10)"
    return [
        Row("queues", f"{title} on 1 queue", Unit.RATE, one_row),
        Row("queues", f"{title} on {settings.queues} queues", Unit.RATE, many_row, (bar,)),
    ]


def _consuming(bench: Bench, key: str, fifo: bool = False) -> dict[str, Figure]:
    """Each round fills a new queue with about as much as the target can process, so that slow peers are not flooded."""
    settings = bench.settings
    cells = Cells(bench, key)
    expected: dict[str, float] = {}

    def consume(server: Server, amount: int, warm_up: float) -> Window:
        session = Session(server.address)
        queue_url = bench.queue(session, fifo)
        filled = bench.fill(server, session, queue_url, amount, settings.body_bytes, FILL_LIMIT)
        work = ReceiveDelete(session.requests, queue_url)
        enough = filled >= amount  # otherwise every message is needed for the measurement itself
        window = bench.load(server, work, warm_up if enough else 0.0)
        twice = check_count(session, queue_url, filled - work.messages, isinstance(server.target, Peer))
        if twice:
            cells.notes[server.target.name] = f"delivered {twice:,} of {filled:,} messages twice"
        session.close()
        return window

    def calibrate(server: Server) -> None:
        for amount in FIRST_FILLS:
            window = consume(server, amount, 0.0)
            expected[server.target.name] = window.rate
            if window.seconds > 0.2:
                break

    def turn(server: Server) -> Window:
        name = server.target.name
        need = expected[name] * (settings.window + settings.warm_up) * 1.4
        window = consume(server, min(LARGEST_FILL, max(200, math.ceil(need / 100) * 100)), settings.warm_up)
        expected[name] = window.rate
        return window

    windows, memory = take_turns(bench, cells, bench.storing, calibrate, turn)
    return _figures(bench.targets, cells, windows, memory)


def _sending(bench: Bench, key: str, work: Callable[[Requests, str], Work], fifo: bool = False) -> dict[str, Figure]:
    """Each round sends to a new queue, and ends with a check of the number of messages in it."""

    def turn(server: Server) -> Window:
        session = Session(server.address)
        queue_url = bench.queue(session, fifo)
        sending = work(session.requests, queue_url)
        window = bench.load(server, sending, bench.settings.warm_up)
        if server.target.stores:
            check_count(session, queue_url, sending.messages)
        session.close()
        return window

    cells = Cells(bench, key)
    windows, memory = take_turns(bench, cells, bench.targets, lambda _: None, turn)
    return _figures(bench.targets, cells, windows, memory)


def _figures(
    targets: list[Target],
    cells: Cells,
    windows: dict[str, list[Window]],
    memory: dict[str, tuple[float, float]],
) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for target in targets:
        name = target.name
        if name in cells.failures:
            figures[name] = cells.failures[name]
        elif windows.get(name):
            figure = from_windows(windows[name], memory.get(name))
            figures[name] = dataclasses.replace(figure, note=cells.notes.get(name, ""))
        else:
            figures[name] = Figure(note=STORES_NOTHING)
    return figures


def _value(figures: dict[str, Figure], name: str) -> float | None:
    return figures[name].value if name in figures else None
