"""Pieces of HTML that all sections use. Cells of a table are HTML already; everything else is text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from semel.doctor.model import Severity
from semel.doctor.report.svg import text

_SIGNS = {Severity.CRITICAL: "✗ critical", Severity.WARNING: "! warning", Severity.INFO: "i note"}


def chip(worst: Severity | None) -> str:
    """A word with a sign and a colour: for those who see it, and for those who do not."""
    if worst is None:
        return '<span class="chip">✓ well</span>'
    return f'<span class="chip {worst.word}">{_SIGNS[worst]}</span>'


def prose(value: str, most: int = 2_000) -> str:
    """Text in which `words` are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text(value, most))


def paragraph(value: str, style: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return f"<p{named}>{prose(value)}</p>" if value else ""


def table(
    caption: str, titles: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], *, unseen: bool = False
) -> str:
    """`titles`: (word, style of its column). Wide tables scroll within themselves, never the page. `unseen`: the
    caption is for screen readers only, as a heading says the same."""
    head = "".join(f'<th scope="col" class="{style}">{text(word)}</th>' for word, style in titles)
    body = []
    for first, *others in rows:
        cells = "".join(f'<td class="{style}">{cell}</td>' for cell, (_, style) in zip(others, titles[1:], strict=True))
        body.append(f'<tr><th scope="row" class="{titles[0][1]}">{first}</th>{cells}</tr>')
    named = text(caption)
    return (
        f'<div class="scroll" role="region" aria-label="{named}" tabindex="0"><table>'
        f"<caption><span{' class=unseen' if unseen else ''}>{named}</span></caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )
