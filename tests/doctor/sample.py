"""Hand-written diagnoses for the tests of the reports: a rich, a healthy, an empty and a hostile one."""

from __future__ import annotations

import math
from typing import Final

from semel.doctor.model import (
    Behaviour,
    Case,
    Cause,
    CauseSummary,
    DeadLetters,
    Diagnosis,
    Duplicate,
    ErrorGroup,
    Evidence,
    Finding,
    HandlerTimes,
    HistogramBar,
    LedgerState,
    LoopingMessage,
    Point,
    Quality,
    QueueState,
    Recommendation,
    Remedy,
    Series,
    Severity,
    TimeoutReplay,
    Times,
    Window,
)

DAY: Final = 1_794_700_800.0  # 2026-11-15 00:00 UTC
NOW: Final = DAY + 86_400 + 17 * 60
ADDRESS: Final = "https://sqs.eu-central-1.amazonaws.com/123456789012/"


def histogram(middle: float, spread: float, total: int, most: float, *, low: float = 0.05) -> tuple[HistogramBar, ...]:
    """Realistic durations around `middle`: many short ones and a long tail."""
    edges = [low * 10 ** (index * 0.08) for index in range(44)]
    weights = [math.exp(-((math.log(edge / middle) / spread) ** 2) / 2) for edge in edges[:-1]]
    scale = total / sum(weights)
    return tuple(
        HistogramBar(start, end, round(weight * scale))
        for start, end, weight in zip(edges, edges[1:], weights, strict=False)
        if round(weight * scale) and start < most
    )


def windows(per_window: float, duplicates: float, *, lost: float = 0.0, count: int = 96) -> tuple[Window, ...]:
    """A day in windows of 15 minutes: quiet at night, busy at noon."""
    quarters = []
    for index in range(count):
        busy = 0.35 + 0.65 * max(0.0, math.sin((index - 24) / 96 * 2 * math.pi)) ** 0.7
        sent = round(per_window * busy * (1 + 0.08 * math.sin(index * 2.7)))
        again = round(sent * duplicates * (0.4 + busy))
        quarters.append(Window(DAY + index * 900, sent, sent + again, round(sent * (1 - lost)), again))
    return tuple(quarters)


def metrics(queue: str, in_flight: float, oldest: float) -> Series:
    points = tuple(
        Point(
            at=DAY + index * 300,
            sent=150 + 90 * math.sin(index / 40),
            received=160 + 95 * math.sin(index / 40),
            deleted=150 + 90 * math.sin((index - 1) / 40),
            empty_receives=3.0,
            visible=40 + 30 * math.sin(index / 17),
            in_flight=in_flight * (0.7 + 0.3 * math.sin(index / 40)),
            delayed=0.0,
            oldest=oldest * (1 + 0.4 * math.sin(index / 13)) if index % 50 else None,
        )
        for index in range(288)
    )
    return Series(queue, 300.0, points, "CloudWatch, metrics.json")


def overrun() -> Duplicate:
    """One message whose visibility timeout ended while it was being processed."""
    message, start = "5fea7756-0ea4-451a-a703-a558b933e274", DAY + 50_522.118

    def event(after: float, step: str, worker: str, count: int, **more: float | str | None) -> Evidence:
        seconds = more.get("seconds")
        error = more.get("error")
        return Evidence(
            at=start + after,
            step=step,
            message_id=message,
            key="order-48112",
            receive_count=count,
            worker=worker,
            seconds=float(seconds) if isinstance(seconds, int | float) else None,
            error=str(error) if error else None,
        )

    return Duplicate(
        cause=Cause.VISIBILITY,
        message_id=message,
        at=start + 30.4,
        receive_count=2,
        overrun=13.9,
        events=(
            event(0.0, "received", "web1-4711", 1),
            event(0.2, "started", "web1-4711", 1, seconds=0.2),
            event(30.4, "received", "web3-0815", 2),
            event(30.5, "started", "web3-0815", 2, seconds=0.1),
            event(43.9, "recorded", "web1-4711", 1, seconds=43.7),
            event(44.0, "deleted", "web1-4711", 1),
            event(71.2, "fenced", "web3-0815", 2, seconds=40.7, error="a newer claim exists"),
        ),
    )


def lost_delete() -> Duplicate:
    message, start = "c80e8021-a70a-42c7-a470-796e1186f753", DAY + 61_007.5
    steps = (("received", 0.0, 1), ("started", 0.1, 1), ("recorded", 2.2, 1), ("deleted", 2.3, 1))
    events = [Evidence(start + after, step, message, "pay-991", count, "pay2-17") for step, after, count in steps]
    events += [Evidence(start + 62.4, "received", message, "pay-991", 2, "pay1-12")]
    events += [Evidence(start + 62.5, "duplicate", message, "pay-991", 2, "pay1-12")]
    return Duplicate(Cause.LOST_DELETE, message, start + 62.4, 2, None, tuple(events))


def orders() -> Case:
    """Unhealthy: the work takes longer than the visibility timeout."""
    behaviour = Behaviour(
        queue="orders",
        first_at=DAY + 0.8,
        last_at=DAY + 86_399.1,
        events=299_312,
        deliveries=49_802,
        attempts=49_771,
        messages=48_210,
        effects=48_222,
        doubled=12,
        retries=30,
        causes=(
            CauseSummary(
                Cause.VISIBILITY, 1_489, 1_489, 38_912.0, Times(1_489, 4.1, 11.9, 25.3, 28.8, 31.4), (overrun(),)
            ),
            CauseSummary(Cause.CRASH, 48, 48, 1_020.0),
            CauseSummary(Cause.PRODUCER, 21, 21, 176.0),
            CauseSummary(Cause.CONCURRENT, 4, 3, 31.0),
        ),
        work=Times(49_771, 8.2, 19.4, 41.3, 55.2, 61.4),
        wait=Times(49_771, 0.12, 0.4, 1.9, 4.2, 6.0),
        hold=Times(49_770, 8.4, 19.9, 42.9, 56.0, 62.2),
        handlers=(
            HandlerTimes("ship", Times(40_121, 7.4, 14.2, 22.8, 29.0, 33.3), Times(40_121, 0.1, 0.4, 1.8, 4.0, 5.1)),
            HandlerTimes("ship_abroad", Times(9_650, 19.8, 36.1, 54.7, 60.2, 61.4), None),
        ),
        histogram=histogram(8.4, 0.68, 49_770, 62.2),
        visibility=30.0,
        batch_fill=3.4,
        workers=12,
        failures=30,
        errors=(
            ErrorGroup(
                "TimeoutError: POST https://carrier.example/labels took <n> s",
                "TimeoutError: POST https://carrier.example/labels took 31 s",
                24,
                22,
                DAY + 30_000,
                DAY + 61_000,
                ("5fea7756-0ea4-451a-a703-a558b933e274",),
            ),
        ),
        window=900.0,
        windows=windows(950, 0.045),
        replays=tuple(
            TimeoutReplay(seconds, duplicates)
            for seconds, duplicates in (
                (15.0, 9_402),
                (30.0, 1_562),
                (45.0, 361),
                (60.0, 81),
                (69.0, 73),
                (90.0, 73),
                (120.0, 73),
                (300.0, 73),
            )
        ),
        skew={"web3-0815": 2.4},
    )
    state = QueueState(
        queue="orders",
        url=f"{ADDRESS}orders",
        arn="arn:aws:sqs:eu-central-1:123456789012:orders",
        visibility=30.0,
        max_receives=2,
        dead_letters=DeadLetters(
            "arn:aws:sqs:eu-central-1:123456789012:orders-dead", True, f"{ADDRESS}orders-dead", 345_600.0, visible=31
        ),
        visible=212,
        in_flight=96,
        attributes={"VisibilityTimeout": "30", "ReceiveMessageWaitTimeSeconds": "0"},
    )
    series = metrics("orders", 280.0, 95.0)
    return Case("orders", behaviour, state, series, LedgerState("redis://cache:6379/0", 86_400.0), now=NOW)


def payments() -> Case:
    """Lost deletes, whose duplicates are deleted without being run, and poison messages that are retried forever."""
    looping = tuple(
        LoopingMessage(
            f"0e4b6a52-8c1d-4c5c-9d1a-{index:012d}",
            f"pay-{700 + index}",
            41 - index,
            41 - index,
            DAY + 400.0 * index,
            DAY + 86_000.0,
            "ValueError: currency 'XXX' is not known",
        )
        for index in range(8)
    )
    behaviour = Behaviour(
        queue="payments",
        first_at=DAY + 2.0,
        last_at=DAY + 86_390.0,
        events=121_440,
        deliveries=22_912,
        attempts=22_510,
        messages=20_114,
        effects=20_073,
        doubled=0,
        retries=2_396,
        causes=(
            CauseSummary(Cause.LOST_DELETE, 371, 0, 0.0, None, (lost_delete(),)),
            CauseSummary(Cause.REDRIVE, 29, 29, 61.0),
            CauseSummary(Cause.UNKNOWN, 2, 2, 4.1),
        ),
        work=Times(22_510, 1.9, 3.1, 5.2, 7.7, 9.8),
        wait=Times(22_510, 0.05, 0.2, 0.6, 1.4, 2.0),
        hold=Times(22_480, 2.1, 3.4, 5.6, 8.1, 10.2),
        handlers=(HandlerTimes("book", Times(22_510, 1.9, 3.1, 5.2, 7.7, 9.8), Times(22_510, 0.05, 0.2, 0.6, 1.4, 2)),),
        histogram=histogram(2.1, 0.4, 22_480, 10.2),
        visibility=60.0,
        heartbeats=0,
        batch_fill=1.0,
        workers=3,
        looping=looping,
        loops=41,
        failures=2_396,
        errors=(
            ErrorGroup(
                "ValueError: currency <s> is not known",
                "ValueError: currency 'XXX' is not known",
                2_204,
                38,
                DAY + 410.0,
                DAY + 86_388.0,
                tuple(loop.message_id for loop in looping[:3]),
            ),
            ErrorGroup(
                "OperationalError: connection to <host> failed",
                "OperationalError: connection to 10.2.0.7 failed",
                192,
                190,
                DAY + 44_000.0,
                DAY + 44_310.0,
                (looping[7].message_id,),
            ),
        ),
        window=900.0,
        windows=windows(400, 0.02, lost=0.002),
        replays=(
            TimeoutReplay(15.0, 402),
            TimeoutReplay(30.0, 402),
            TimeoutReplay(60.0, 402),
            TimeoutReplay(120.0, 402),
        ),
    )
    state = QueueState("payments", f"{ADDRESS}payments", visibility=60.0, visible=44, in_flight=41)
    return Case("payments", behaviour, state, metrics("payments", 70.0, 40.0), now=NOW)


def emails() -> Case:
    """Healthy."""
    behaviour = Behaviour(
        queue="emails.fifo",
        first_at=DAY + 11.0,
        last_at=DAY + 86_300.0,
        events=517_780,
        deliveries=103_556,
        attempts=103_556,
        messages=103_556,
        effects=103_556,
        doubled=0,
        retries=0,
        work=Times(103_556, 0.31, 0.6, 1.1, 2.0, 4.4),
        wait=Times(103_556, 0.02, 0.05, 0.2, 0.6, 1.2),
        hold=Times(103_556, 0.34, 0.7, 1.2, 2.2, 4.6),
        histogram=histogram(0.34, 0.45, 103_556, 4.6),
        visibility=30.0,
        heartbeats=22_100,
        heartbeat_every=10.0,
        batch_fill=8.1,
        workers=2,
        groups=9_211,
        window=900.0,
        windows=windows(2_050, 0.0),
        replays=(TimeoutReplay(15.0, 0), TimeoutReplay(30.0, 0), TimeoutReplay(60.0, 0)),
    )
    state = QueueState("emails.fifo", f"{ADDRESS}emails.fifo", fifo=True, high_throughput=True, wait=20.0)
    return Case("emails.fifo", behaviour, state, None, now=NOW)


def set_attribute(queue: str, name: str, value: str) -> str:
    return f"aws sqs set-queue-attributes --queue-url {ADDRESS}{queue} --attributes {name}={value}"


FINDINGS: Final = (
    Finding(
        "duplicates-visibility",
        Severity.CRITICAL,
        "orders",
        "The visibility timeout is 30 s but the work takes 41.3 s (P99): 1,489 messages (3.1 %) were delivered again "
        "while they were worked on.",
        "Two workers then do the same work at the same time, and whatever is not idempotent happens twice.",
        Remedy(
            "Set the visibility timeout to 69 s, or extend it with a heartbeat.",
            (set_attribute("orders", "VisibilityTimeout", "69"),),
            'resource "aws_sqs_queue" "orders" {\n  visibility_timeout_seconds = 69\n}',
        ),
        (overrun(),),
        {"visibility": 30.0, "p99": 41.3, "recommended": 69},
    ),
    Finding(
        "no-dead-letter-queue",
        Severity.CRITICAL,
        "payments",
        "The queue has no dead-letter queue, and 41 messages were received three times or more.",
        "Poison goes round until its retention ends, and is then gone without a trace.",
        Remedy(
            "Create a dead-letter queue that keeps 14 days, and let messages go there after 5 receives.",
            (
                "aws sqs create-queue --queue-name payments-dead --attributes MessageRetentionPeriod=1209600",
                "aws sqs set-queue-attributes --queue-url " + ADDRESS + 'payments --attributes \'{"RedrivePolicy": '
                '"{\\"deadLetterTargetArn\\":\\"arn:aws:sqs:eu-central-1:123456789012:payments-dead\\",'
                '\\"maxReceiveCount\\":5}"}\'',
            ),
            'resource "aws_sqs_queue" "payments_dead" {\n  name                      = "payments-dead"\n'
            "  message_retention_seconds = 1209600\n}",
        ),
    ),
    Finding(
        "duplicates-lost-delete",
        Severity.WARNING,
        "payments",
        "371 messages (1.8 %) came again after SQS had confirmed their delete; the ledger caught all of them.",
        "Without a ledger each of them would have been paid twice.",
        Remedy("Keep the ledger, and remember keys for at least as long as the queue keeps messages."),
        (lost_delete(),),
    ),
    Finding(
        "dead-letter-retention",
        Severity.WARNING,
        "orders",
        "The dead-letter queue keeps messages for 4 days, no longer than the queue itself.",
        "On a standard queue a dead letter keeps its first time of sending, so it can be gone soon after it arrived.",
        Remedy(
            "Let the dead-letter queue keep 14 days.",
            (set_attribute("orders-dead", "MessageRetentionPeriod", "1209600"),),
            'resource "aws_sqs_queue" "orders_dead" {\n  message_retention_seconds = 1209600\n}',
        ),
    ),
    Finding(
        "short-polling",
        Severity.INFO,
        "orders",
        "The queue answers receives at once (wait time 0 s).",
        "Each empty answer is billed, and a short poll can miss messages that are there.",
        Remedy("Set the wait time to 20 s.", (set_attribute("orders", "ReceiveMessageWaitTimeSeconds", "20"),)),
    ),
)

ADVICE: Final = (
    Recommendation(
        "orders",
        "visibility timeout",
        "69 s",
        "30 s",
        (
            "99 % of the messages are held for at most 42.9 s; with half as much again that is 65 s.",
            "The longest was held for 62.2 s; with a tenth more that is 69 s.",
        ),
        True,
        Remedy("", (set_attribute("orders", "VisibilityTimeout", "69"),)),
    ),
    Recommendation(
        "orders", "heartbeat interval", "10 s", None, ("A third of 30 s: two lost beats do no harm.",), True
    ),
    Recommendation(
        "orders", "maxReceiveCount", "5", "2", ("Two receives leave no room for a crash and one retry.",), True
    ),
    Recommendation("orders", "retention", "4 d", "4 d", ("Longer than any retry takes.",), False),
    Recommendation("payments", "visibility timeout", "60 s", "60 s", ("The longest work took 9.8 s.",), False),
    Recommendation(
        "payments", "ledger retention", "28 d", "1 d", ("Retention of the queue and its dead letters together.",), True
    ),
)

QUALITY: Final = Quality(
    files=312,
    unreadable=("attempts/date=2026-11-15/attempts-web3-0815.jsonl.gz: the file ends in the middle",),
    lines=938_609,
    events=938_532,
    malformed=61,
    incomplete=16,
    out_of_order=4,
    dropped=0,
    samples=('{"at": 1794700901.2, "step": "rec',),
)
ENGINE: Final = "DuckDB in this process: 96 MB of logs"


def rich() -> Diagnosis:
    return Diagnosis(
        made_at=NOW,
        cases=(orders(), payments(), emails()),
        findings=FINDINGS,
        recommendations=ADVICE,
        quality=QUALITY,
        since=DAY,
        until=DAY + 86_400,
        notes=("payments: sqs:ListDeadLetterSourceQueues is not allowed, so nobody knows whose dead letters it takes",),
        engine=ENGINE,
    )


def healthy() -> Diagnosis:
    return Diagnosis(
        made_at=NOW, cases=(emails(),), findings=(), recommendations=(), quality=Quality(files=12, lines=9, events=9)
    )


def empty() -> Diagnosis:
    return Diagnosis(made_at=NOW, cases=(), findings=(), recommendations=())


HOSTILE: Final = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;]]>-->\x1b[31mred\x1b]0;title\x07\r\n\x00"
)
BIDI: Final = "abc\u202edcba\u2066\u200b\ud800 日本語のキュー"


def hostile() -> Diagnosis:
    """Everything that a log can contain: markup, escape sequences, lone surrogates, very long words, NaN."""
    long = "x" * 5_000
    evidence = Evidence(DAY, HOSTILE, HOSTILE, BIDI, 2, HOSTILE, math.nan, HOSTILE + long)
    duplicate = Duplicate(Cause.UNKNOWN, HOSTILE, math.inf, None, None, (evidence,))
    name = HOSTILE + BIDI
    behaviour = Behaviour(
        queue=name,
        first_at=DAY,
        last_at=DAY,
        events=1,
        deliveries=10**15,
        attempts=10**15,
        messages=1,
        effects=0,
        doubled=10**12,
        retries=0,
        causes=(CauseSummary(Cause.UNKNOWN, 10**15, 0, 1e18, None, (duplicate,)),),
        work=Times(1, 0.0, 0.0, 0.0, 0.0, math.inf),
        hold=Times(1, 0.0, 0.0, 0.0, 0.0, 1e12),
        handlers=(HandlerTimes(HOSTILE + long, Times(1, 0.0, 0.0, 0.0, 0.0, 0.0), None),),
        histogram=(HistogramBar(0.0, 0.0, 0), HistogramBar(0.0, 1e-9, 3), HistogramBar(1e9, math.inf, 10**15)),
        visibility=0.0,
        looping=(LoopingMessage(HOSTILE + long, None, 3, 3, DAY, DAY, HOSTILE + long),),
        loops=1,
        errors=(ErrorGroup(long, HOSTILE + long, 1, 1, DAY, DAY, (HOSTILE,)),),
        windows=(Window(DAY, 0, 0, 0, 0),),
        replays=(TimeoutReplay(0.0, 0),),
        skew={HOSTILE: -1e9},
    )
    series = Series(name, 0.0, (Point(DAY), Point(DAY, in_flight=math.nan, oldest=math.inf)), HOSTILE)
    state = QueueState(name, HOSTILE, attributes={HOSTILE: HOSTILE}, refused={HOSTILE: HOSTILE})
    remedy = Remedy(HOSTILE, (f"echo {HOSTILE}",), HOSTILE + "\n" + long)
    return Diagnosis(
        made_at=NOW,
        cases=(Case(name, behaviour, state, series, LedgerState(HOSTILE, problem=HOSTILE)), Case(long)),
        findings=(
            Finding(
                HOSTILE, Severity.CRITICAL, name, HOSTILE + BIDI, HOSTILE, remedy, (duplicate,), {HOSTILE: math.nan}
            ),
            Finding("long", Severity.INFO, long, long, long, Remedy(long, (long,), long)),
        ),
        recommendations=(Recommendation(name, HOSTILE, HOSTILE, HOSTILE, (HOSTILE + long, BIDI), True, remedy),),
        quality=Quality(1, (HOSTILE + long,), 1, 0, 1, samples=(HOSTILE + long,)),
        notes=(HOSTILE + BIDI + long,),
        engine=HOSTILE + BIDI + long,
    )
