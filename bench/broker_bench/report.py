"""The results of a run as tables, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from broker_bench.results import NOT_ASKED, Figure, Report, Row, Unit

RATIOS = ("echo", "bare", "ministack", "moto")
BUSY = 0.95  # of a core: above this the generator, not the server, may have been the bottleneck
NOISY = 0.25  # of a core used by others: above this a figure should be measured again
FEW = 2_000  # messages in a round: with fewer, the cost of a deep queue hardly shows

Table = list[Sequence[str]]


def tables(report: Report) -> list[tuple[str, Table]]:
    """Every table of the report with its heading; the first line of each is its header."""
    sections = [
        ("Figures (median of all rounds, ± half the spread) and ratios", _figures(report)),
        ("Bars (Semel durable)", _bars(report)),
        ("Server CPU per call in µs, and the share of a core that the generator itself used", _costs(report)),
    ]
    return [(heading, table) for heading, table in sections if len(table) > 1]


def _figures(report: Report) -> Table:
    names = list(report.labels)
    ratios = [name for name in RATIOS if name in names] if "semel" in names else []
    bar = ["bar"] if "semel" in names else []
    head = ["work", "unit", *report.labels.values(), *(f"÷ {report.labels[name]}" for name in ratios), *bar]
    lines: Table = [head]
    for row in report.rows:
        cells = [_cell(row, row.figures.get(name)) for name in names]
        quotients = [_quotient(row.ratio(name)) for name in ratios]
        lines.append([row.title, row.unit.value, *cells, *quotients, *[row.verdict for _ in bar]])
    return lines


def _cell(row: Row, figure: Figure | None) -> str:
    if figure is None or figure.value is None:
        return "failed" if figure is not None and figure.note not in NOT_ASKED else "–"
    text = row.unit.write(figure.value)
    if figure.spread is not None:
        text += f" ±{figure.spread:.0%}"
    if figure.amount is not None:
        text += f" @ {figure.amount:,}"
    return text


def _quotient(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _bars(report: Report) -> Table:
    lines: Table = [("work", "bar", "reached", "verdict")]
    lines += [(row.title, bar.text, bar.written, bar.verdict) for row in report.rows for bar in row.bars]
    return lines if "semel" in report.labels else lines[:1]


def _costs(report: Report) -> Table:
    lines: Table = [["work", *report.labels.values()]]
    for row in report.rows:
        if row.unit is Unit.RATE:
            lines.append([row.title, *(_cost(row.figures.get(name)) for name in report.labels)])
    return lines


def _cost(figure: Figure | None) -> str:
    if figure is None or figure.cpu_us is None or figure.generator_share is None:
        return "–"
    return f"{figure.cpu_us:,.0f} µs, {figure.generator_share:.0%}"


def notes(report: Report) -> list[str]:
    """What a reader must know to interpret the tables."""
    lines = []
    for row in report.rows:
        others = max((figure.others_share or 0.0 for figure in row.figures.values()), default=0.0)
        if others > NOISY:
            lines.append(
                f"{row.title}: other work on the machine used up to {others:.0%} of a core meanwhile; repeat it"
            )
        for name, figure in row.figures.items():
            place = f"{row.title}, {report.labels[name]}"
            if figure.note not in NOT_ASKED:
                lines.append(f"{place}: {figure.note}")
            if figure.amount is not None:
                lines.append(f"{place}: {figure.amount:,} messages is what it took in within its time")
            if figure.per_round is not None and figure.per_round < FEW:
                lines.append(f"{place}: only {figure.per_round:,.0f} messages went through in each round")
            if (figure.generator_share or 0.0) > BUSY:
                lines.append(f"{place}: the generator was busy {figure.generator_share:.0%}, the server may be faster")
            if row.key in ("memory", "restart") and figure.peak_mb is not None:
                lines.append(f"{place}: {figure.peak_mb:,.0f} MB at its highest")
    lines.append("@ N: measured with N messages instead of what the row says")
    lines.append("÷: Semel durable divided by the other; more is better for messages/s, less for all other units")
    return lines


def header(report: Report) -> list[str]:
    return [
        *(["QUICK RUN: short windows and small amounts, not for figures to quote"] if report.quick else []),
        *(f"{name}: {value}" for name, value in report.machine.items()),
        "targets: " + "; ".join(f"{report.labels[name]} {version}" for name, version in report.versions.items()),
        f"load: {report.settings['connections']} connections, bodies of {report.settings['body_bytes']} bytes, "
        f"{report.settings['rounds']} rounds of {report.settings['window']} s after {report.settings['warm_up']} s, "
        + ("generator and server on cores of their own" if report.settings["pinned"] else "no cores assigned"),
    ]


def as_text(report: Report) -> str:
    parts = ["\n".join(header(report))]
    for heading, table in tables(report):
        widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
        lines = [
            "  ".join(
                cell.ljust(width) if column == 0 or heading.startswith("Bars") else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in table
        ]
        lines.insert(1, "-" * max(map(len, lines)))
        parts.append("\n".join([heading, "", *lines]))
    parts.append("\n".join(["Notes", "", *notes(report)]))
    return "\n\n".join(parts) + "\n"


def as_markdown(report: Report) -> str:
    parts = [
        "# The broker and its peers",
        "Written by `make bench-broker`.",
        "\n".join(f"- {x}" for x in header(report)),
    ]
    for heading, table in tables(report):
        lines = ["| " + " | ".join(line) + " |" for line in table]
        lines.insert(1, "|" + "|".join("---" if column == 0 else "--:" for column in range(len(table[0]))) + "|")
        parts += [f"## {heading}", "\n".join(lines)]
    parts += ["## Notes", "\n".join(f"- {note}" for note in notes(report))]
    return "\n\n".join(parts) + "\n"
