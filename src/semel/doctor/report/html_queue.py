"""One queue in full: its figures, its charts, the settings it should have, and the messages and errors behind it."""

from __future__ import annotations

from collections.abc import Sequence

from semel.doctor.model import Behaviour, Case, Recommendation, Severity, Times
from semel.doctor.report.charts import Chart, charts
from semel.doctor.report.html_parts import chip, paragraph, table
from semel.doctor.report.svg import text
from semel.doctor.report.words import CAUSES, NONE, count, duration, number, percent, when


def section(
    case: Case, advice: Sequence[Recommendation], advised: float | None, *, worst: Severity | None, name: str
) -> str:
    """A healthy queue shows its figures; the rest of it is folded."""
    seen, timeout = case.behaviour, case.visibility
    parts = [f'<section aria-labelledby="{name}"><h2 id="{name}">{text(case.queue, 200)} {chip(worst)}</h2>']
    parts.append(_tiles(case))
    drawn = charts(seen, case.series, timeout, advised, name=name)
    inside = [f'<div class="grid">{"".join(map(_figure, drawn))}</div>' if drawn else ""]
    if advice:
        inside.append(f'<div class="card">{_settings(advice)}</div>')
    if seen is not None:
        inside += [f'<div class="card">{one}</div>' for one in _tables(seen) if one]
    full = "".join(inside)
    if worst is None and full:
        full = f"<details><summary>Charts and figures</summary>{full}</details>"
    return "".join([*parts, full, "</section>"])


def _figure(chart: Chart) -> str:
    return (
        f'<figure class="card"><figcaption>{text(chart.title)}</figcaption>'
        f"{paragraph(chart.says, 'says')}{chart.svg}</figure>"
    )


def _tiles(case: Case) -> str:
    seen, state = case.behaviour, case.state
    tiles: list[tuple[str, str, str, bool]] = []
    if seen is not None:
        tiles += [
            ("Messages", number(seen.messages), f"{number(seen.deliveries)} deliveries", False),
            ("Duplicates", percent(seen.duplicate_share), number(seen.duplicates), seen.duplicates > 0),
            ("Doubled", number(seen.doubled), "keys, by the logs", seen.doubled > 0),
            ("Time wasted", duration(round(seen.wasted)) if seen.wasted else NONE, "in handlers", False),
        ]
        if seen.hold is not None or seen.work is not None:
            held = seen.hold or seen.work
            timeout = case.visibility
            late = timeout is not None and held is not None and held.p99 > timeout and not seen.has_heartbeat
            tiles.append(("Held, P99", duration(held.p99) if held else NONE, f"timeout {duration(timeout)}", late))
    elif state is not None:
        tiles.append(("Visibility timeout", duration(state.visibility), "", False))
    if state is not None:
        tiles.append(("Waiting now", number(state.visible), f"{number(state.in_flight)} in flight", False))
        if state.dead_letters is not None and state.dead_letters.visible is not None:
            dead = state.dead_letters.visible
            tiles.append(("Dead letters", number(dead), "waiting", dead > 0))
    inside = "".join(
        f'<div class="tile{" alarm" if alarm else ""}"><dt>{word}</dt><dd>{value}<small>{more}</small></dd></div>'
        for word, value, more, alarm in tiles
    )
    return f'<dl class="tiles">{inside}</dl>' if tiles else paragraph("Nothing is known of it but its name.", "muted")


def _settings(advice: Sequence[Recommendation]) -> str:
    rows = [
        [
            text(one.setting, 80),
            text(one.now or NONE, 80),
            f"<strong>{text(one.value, 80)}</strong>" if one.changes else text(one.value, 80),
            "change" if one.changes else "fine",
            text("; ".join(one.reasons), 400),
        ]
        for one in advice
    ]
    titles = (("setting", ""), ("now", "words"), ("should be", "words"), ("", ""), ("why", "words"))
    return table("Settings", titles, rows)


def _tables(seen: Behaviour) -> list[str]:
    return [_causes(seen), _times(seen), _looping(seen), _errors(seen), _clocks(seen)]


def _causes(seen: Behaviour) -> str:
    if not seen.causes:
        return ""
    rows = [
        [
            f'{text(CAUSES[one.cause][0])} <span class="muted small">{text(CAUSES[one.cause][1])}</span>',
            number(one.duplicates),
            percent(one.duplicates / seen.messages if seen.messages else None),
            number(one.ran),
            duration(one.wasted) if one.wasted else NONE,
            duration(one.overrun.p50) if one.overrun else NONE,
            duration(one.overrun.most) if one.overrun else NONE,
        ]
        for one in seen.causes
    ]
    titles = (
        ("cause", ""), ("duplicates", "n"), ("of messages", "n"), ("ran again", "n"), ("wasted", "n spare"),
        ("too late, P50", "n spare"), ("at most", "n spare"),
    )  # fmt: skip
    return table("Duplicates by cause", titles, rows)


def _times(seen: Behaviour) -> str:
    named: list[tuple[str, Times | None]] = [
        ("in the handler", seen.work),
        ("from the receive to its start", seen.wait),
        ("from the receive to the delete", seen.hold),
    ]
    if len(seen.handlers) > 1:
        for handler in seen.handlers:
            named += [(f"in {handler.handler}", handler.work), (f"until {handler.handler} starts", handler.wait)]
    rows = [
        [text(word, 120), number(one.count), *map(duration, (one.p50, one.p90, one.p99, one.p999, one.most))]
        for word, one in named
        if one is not None
    ]
    titles = (("", ""), ("count", "n spare"), *((word, "n") for word in ("P50", "P90", "P99", "P99.9", "longest")))
    return table("Times", titles, rows) if rows else ""


def _looping(seen: Behaviour) -> str:
    rows = [
        [
            text(one.message_id, 80),
            text(one.key or NONE, 80),
            number(one.receive_count),
            when(one.first_at),
            when(one.last_at),
            text(one.error or NONE, 300),
        ]
        for one in seen.looping
    ]
    titles = (
        ("message", "words"), ("key", "words spare"), ("receives", "n"), ("first", "time spare"),
        ("last", "time spare"), ("last error", "words"),
    )  # fmt: skip
    more = f", the worst {len(rows)}" if seen.loops > len(rows) else ""
    return table(f"{count(seen.loops, 'message')} received three times or more{more}", titles, rows) if rows else ""


def _errors(seen: Behaviour) -> str:
    rows = [
        [text(one.sample, 400), number(one.count), number(one.messages), when(one.first_at), when(one.last_at)]
        for one in seen.errors
    ]
    titles = (("error", "words"), ("count", "n"), ("messages", "n"), ("first", "time spare"), ("last", "time spare"))
    return table("Errors, alike ones together", titles, rows) if rows else ""


def _clocks(seen: Behaviour) -> str:
    rows = [
        [text(worker, 80), f"{duration(abs(behind))} {'behind' if behind > 0 else 'ahead'}"]
        for worker, behind in seen.skew.items()
    ]
    return table("Clocks that differ from SQS'", (("worker", ""), ("its clock is", "n")), rows) if rows else ""
