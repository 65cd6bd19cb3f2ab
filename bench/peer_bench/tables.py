"""Tables for the terminal and as Markdown, and the format of figures in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker_bench.results import Bar, Figure

Table = list[Sequence[str]]


def laid_out(table: Table) -> str:
    """The table as text. Its first line is the header, its first column has the names."""
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def as_markdown(table: Table) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in table]
    lines.insert(1, "|" + "|".join("---" if column == 0 else "--:" for column in range(len(table[0]))) + "|")
    return "\n".join(lines)


def rate(figure: Figure | None) -> str:
    if figure is None or figure.value is None:
        return "failed" if figure is not None and figure.note else "–"
    spread = f" ±{figure.spread:.0%}" if figure.spread is not None else ""
    return f"{figure.value:,.0f}{spread}" if figure.value >= 100 else f"{figure.value:.1f}{spread}"


def quotient(numerator: Figure | None, denominator: Figure | None) -> str:
    if numerator is None or denominator is None or not numerator.value or not denominator.value:
        return "–"
    value = numerator.value / denominator.value
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def bars_table(bars: Iterable[tuple[str, Bar]]) -> Table:
    lines: Table = [("work", "bar", "reached", "verdict")]
    return lines + [(work, bar.text, bar.written, bar.verdict) for work, bar in bars]
