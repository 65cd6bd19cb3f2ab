"""Draws the failure timelines of docs/explanation/failures.md:
`python docs/images/failures/draw.py` writes the SVG files.

A story is a list of steps from top to bottom; each step has a row of its own, so labels cannot run into each other. A
label that does not fit into its place is an error. The colours follow the reader's light or dark mode.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from pathlib import Path
from typing import Final

LEFT, GAP, RIGHT = 190, 180, 130  # before the first participant, between participants, behind the last participant
HEAD, ROW, FOOT = 96, 44, 20
CHARACTER: Final = 6.8  # widest average of a character at 12 px, in the fonts below
STYLE: Final = """
svg{--bg:#fff;--text:#1f2328;--muted:#59636e;--line:#afb8c1;--box:#f0f3f6;
--hidden:#54aeff;--lease:#4ac26b;--work:#d4a72c;--bad:#cf222e}
@media(prefers-color-scheme:dark){svg{--bg:#0d1117;--text:#e6edf3;--muted:#9198a1;--line:#57606a;--box:#21262d;
--hidden:#1f6feb;--lease:#238636;--work:#9e6a03;--bad:#ff7b72}}
text{font:12px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:var(--text)}
.title{font-size:16px;font-weight:600}.participant{font-weight:600}.muted{fill:var(--muted)}.red{fill:var(--bad)}
.middle{text-anchor:middle}.end{text-anchor:end}
.life{stroke:var(--line);stroke-dasharray:2 4}.arrow{stroke:var(--text);stroke-width:1.3}.head{fill:var(--text)}
.bad{stroke:var(--bad);stroke-width:1.6}.dashed{stroke-dasharray:5 4}.badhead{fill:var(--bad)}
.box{fill:var(--box);stroke:var(--line)}.hidden{fill:var(--hidden)}.lease{fill:var(--lease)}.work{fill:var(--work)}
"""


class Bar(StrEnum):
    HIDDEN = "hidden"  # SQS shows the message to nobody else
    LEASE = "lease"  # the ledger gives the key to nobody else
    WORK = "work"  # a handler runs


@dataclass(frozen=True, slots=True)
class Call:
    """An arrow. `answer` is written below it. `lost`: it does not arrive, or has no effect. `refused`: it is denied."""

    source: str
    target: str
    text: str
    answer: str = ""
    at: str = ""
    lost: bool = False
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    participant: str
    text: str
    at: str = ""


@dataclass(frozen=True, slots=True)
class Dies:
    participant: str
    text: str
    at: str = ""


@dataclass(frozen=True, slots=True)
class Begin:
    """A bar begins with the step before it. Its label, of up to two lines, is beside it."""

    participant: str
    kind: Bar
    text: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """The bar of a participant ends with the step before it."""

    participant: str


Step = Call | Note | Dies | Begin | End


@dataclass(frozen=True, slots=True)
class Story:
    name: str
    title: str
    participants: tuple[str, ...]
    steps: Sequence[Step]

    def x(self, participant: str) -> int:
        return LEFT + GAP * self.participants.index(participant)


WORKERS: Final = ("SQS", "worker 1", "worker 2", "ledger")
RECEIVED: Final = (
    Call("SQS", "worker 1", "message, key 7", at="0 s"),
    Begin("SQS", Bar.HIDDEN, "hidden\nfor 30 s"),
    Call("worker 1", "ledger", "claims key 7", "won, fence 1"),
    Begin("ledger", Bar.LEASE, "lease\nof fence 1"),
)
VISIBLE_AGAIN: Final = (Note("SQS", "visible again", at="30 s"), End("SQS"))

STORIES: Final = (
    Story(
        "visibility-timeout",
        "The visibility timeout ends while a handler works",
        WORKERS,
        (
            *RECEIVED,
            Note("worker 1", "handler starts"),
            Begin("worker 1", Bar.WORK),
            Call("worker 1", "SQS", "heartbeat", "SQS does not answer", at="10 s", lost=True),
            Call("worker 1", "ledger", "heartbeat", "lease extended"),
            *VISIBLE_AGAIN,
            Call("SQS", "worker 2", "message, key 7"),
            Begin("SQS", Bar.HIDDEN, "hidden until\nthe lease ends"),
            Call("worker 2", "ledger", "claims key 7", "held by fence 1"),
            Call("worker 2", "SQS", "hides it for 20 s"),
            Note("worker 1", "handler returns", at="45 s"),
            End("worker 1"),
            Call("worker 1", "ledger", "records, fence 1", "done"),
            End("ledger"),
            Call("worker 1", "SQS", "deletes", "with its old handle"),
            Note("SQS", "visible again", at="52 s"),
            End("SQS"),
            Call("SQS", "worker 2", "if it was kept: again"),
            Begin("SQS", Bar.HIDDEN, "hidden\nfor 30 s"),
            Call("worker 2", "ledger", "claims key 7", "already done"),
            Call("worker 2", "SQS", "deletes"),
            End("SQS"),
        ),
    ),
    Story(
        "lost-delete",
        "A delete is lost",
        WORKERS,
        (
            *RECEIVED,
            Note("worker 1", "handler runs"),
            Call("worker 1", "ledger", "records, fence 1", "done"),
            End("ledger"),
            Call("worker 1", "SQS", "deletes", "SQS keeps the message", lost=True),
            *VISIBLE_AGAIN,
            Call("SQS", "worker 2", "message, key 7"),
            Begin("SQS", Bar.HIDDEN, "hidden\nfor 30 s"),
            Call("worker 2", "ledger", "claims key 7", "already done"),
            Note("worker 2", "handler is not called"),
            Call("worker 2", "SQS", "deletes"),
            End("SQS"),
        ),
    ),
    Story(
        "death-after-the-effect",
        "A worker dies after the effect and before the record (lease mode)",
        ("SQS", "worker 1", "worker 2", "payment service", "ledger"),
        (
            *RECEIVED,
            Call("worker 1", "payment service", "charge, key 7", "charged"),
            Dies("worker 1", "dies before the record"),
            *VISIBLE_AGAIN,
            End("ledger"),
            Call("SQS", "worker 2", "message, key 7"),
            Begin("SQS", Bar.HIDDEN, "hidden\nfor 30 s"),
            Call("worker 2", "ledger", "claims key 7", "won, fence 2"),
            Begin("ledger", Bar.LEASE, "lease\nof fence 2"),
            Call("worker 2", "payment service", "charge, key 7", "key 7 is known"),
            Call("worker 2", "ledger", "records, fence 2", "done"),
            End("ledger"),
            Call("worker 2", "SQS", "deletes"),
            End("SQS"),
        ),
    ),
    Story(
        "death-in-a-transaction",
        "A worker dies inside a transaction",
        ("SQS", "worker 1", "worker 2", "database"),
        (
            Call("SQS", "worker 1", "message, key 7", at="0 s"),
            Begin("SQS", Bar.HIDDEN, "hidden\nfor 30 s"),
            Call("worker 1", "database", "claims key 7", "won, fence 1"),
            Begin("database", Bar.LEASE, "lease\nof fence 1"),
            Call("worker 1", "database", "BEGIN, INSERT"),
            Dies("worker 1", "dies before the COMMIT"),
            Note("database", "rolls back: no row"),
            *VISIBLE_AGAIN,
            End("database"),
            Call("SQS", "worker 2", "message, key 7"),
            Begin("SQS", Bar.HIDDEN, "hidden\nfor 30 s"),
            Call("worker 2", "database", "claims key 7", "won, fence 2"),
            Begin("database", Bar.LEASE, "lease\nof fence 2"),
            Call("worker 2", "database", "BEGIN, INSERT"),
            Call("worker 2", "database", "record, COMMIT", "one row, and done"),
            End("database"),
            Call("worker 2", "SQS", "deletes"),
            End("SQS"),
        ),
    ),
    Story(
        "zombie",
        "A worker wakes up after its lease",
        WORKERS,
        (
            *RECEIVED,
            Note("worker 1", "handler starts"),
            Begin("worker 1", Bar.WORK),
            Note("worker 1", "process is paused"),
            End("worker 1"),
            *VISIBLE_AGAIN,
            End("ledger"),
            Call("SQS", "worker 2", "message, key 7"),
            Begin("SQS", Bar.HIDDEN, "hidden\nfor 30 s"),
            Call("worker 2", "ledger", "claims key 7", "won, fence 2"),
            Begin("ledger", Bar.LEASE, "lease\nof fence 2"),
            Note("worker 2", "handler runs"),
            Call("worker 2", "ledger", "records, fence 2", "done"),
            End("ledger"),
            Call("worker 2", "SQS", "deletes"),
            End("SQS"),
            Note("worker 1", "wakes up", at="60 s"),
            Begin("worker 1", Bar.WORK),
            Note("worker 1", "handler returns"),
            End("worker 1"),
            Call("worker 1", "ledger", "records, fence 1", "refused: older fence", refused=True),
        ),
    ),
    Story(
        "spark-driver",
        "The Spark driver dies between seal and commit",
        ("SQS", "task", "driver", "segment log", "table"),
        (
            Call("driver", "segment log", "plan of batch 7"),
            Call("SQS", "task", "500 messages"),
            Begin("SQS", Bar.HIDDEN, "hidden\nfor 120 s"),
            Call("task", "segment log", "seals them", "put-if-absent"),
            Call("task", "SQS", "deletes 500 messages"),
            End("SQS"),
            Dies("driver", "dies before the commit"),
            Note("driver", "started again"),
            Call("driver", "table", "last batch?", "batch 6"),
            Call("driver", "segment log", "batch 7, same plan"),
            Call("task", "segment log", "segment sealed?", "yes: 500 messages"),
            Note("SQS", "nothing is received"),
            Call("task", "table", "stages the rows"),
            Call("driver", "table", "commits batch 7", "500 rows, once"),
            Call("driver", "segment log", "drops the segment"),
        ),
    ),
    Story(
        "interrupted-redrive",
        "A redrive is interrupted and repeated",
        ("dead-letter queue", "redrive", "source queue", "worker", "ledger"),
        (
            Call("dead-letter queue", "redrive", "claims the message", at="0 s"),
            Begin("dead-letter queue", Bar.HIDDEN, "hidden\nfor 2 min"),
            Call("redrive", "source queue", "sends a copy, key 7"),
            Dies("redrive", "dies before the delete"),
            Call("source queue", "worker", "copy, key 7"),
            Call("worker", "ledger", "claims key 7", "won"),
            Note("worker", "handler runs"),
            Call("worker", "ledger", "records", "done"),
            Call("worker", "source queue", "deletes the copy"),
            Note("dead-letter queue", "visible again", at="2 min"),
            End("dead-letter queue"),
            Note("redrive", "second run"),
            Call("dead-letter queue", "redrive", "claims the message"),
            Begin("dead-letter queue", Bar.HIDDEN, "hidden\nfor 2 min"),
            Call("redrive", "source queue", "sends a copy, key 7"),
            Call("redrive", "dead-letter queue", "deletes the message"),
            End("dead-letter queue"),
            Call("source queue", "worker", "copy, key 7"),
            Call("worker", "ledger", "claims key 7", "already done"),
            Call("worker", "source queue", "deletes the copy"),
        ),
    ),
)


class DoesNotFit(ValueError):
    """A label is longer than the place that it has."""


def drawing(story: Story) -> str:
    rows = [step for step in story.steps if isinstance(step, Call | Note | Dies)]
    width = LEFT + GAP * (len(story.participants) - 1) + RIGHT
    height = HEAD + ROW * len(rows) + FOOT
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-labelledby="t d">',
            f'<title id="t">{escape(story.title)}</title>',
            f'<desc id="d">{escape("; ".join(map(sentence, rows)))}.</desc>',
            f"<style>{STYLE}</style>",
            f'<rect width="{width}" height="{height}" rx="6" style="fill:var(--bg)"/>',
            f'<text class="title" x="16" y="28">{escape(story.title)}</text>',
            *participants(story, height),
            *bars(story),
            *steps(story),
            "</svg>\n",
        )
    )


def sentence(step: Call | Note | Dies) -> str:
    """A row in words, for those who cannot see it."""
    at = f"at {step.at}, " if step.at else ""
    if isinstance(step, Call):
        answer = f" ({step.answer})" if step.answer else ""
        return f"{at}{step.source} to {step.target}: {step.text}{answer}"
    return f"{at}{step.participant}: {step.text}"


def participants(story: Story, height: int) -> Iterator[str]:
    for participant in story.participants:
        x = story.x(participant)
        yield f'<rect class="box" x="{x - 70}" y="44" width="140" height="26" rx="5"/>'
        yield text(x, 61, participant, "participant middle", 120)  # bold characters are wider
        yield f'<line class="life" x1="{x}" y1="70" x2="{x}" y2="{height - 8}"/>'


def bars(story: Story) -> Iterator[str]:
    opened: dict[str, tuple[Begin, int]] = {}
    y = HEAD - ROW
    for step in story.steps:
        if isinstance(step, Begin):
            opened[step.participant] = (step, y)
        elif isinstance(step, End):
            yield from bar(story, *opened.pop(step.participant), y)
        else:
            y += ROW
    for begin, start in opened.values():
        yield from bar(story, begin, start, y)


def bar(story: Story, begin: Begin, start: int, end: int) -> Iterator[str]:
    x = story.x(begin.participant)
    yield f'<rect class="{begin.kind}" x="{x - 6}" y="{start - 8}" width="12" height="{end - start + 16}" rx="3"/>'
    is_first = begin.participant == story.participants[0]
    if begin.text and not is_first and begin.participant != story.participants[-1]:
        raise DoesNotFit(
            f"{story.name}: a bar with a label is at the first or the last participant, not at {begin.participant}"
        )
    for number, line in enumerate(begin.text.split("\n") if begin.text else ()):
        place = (x - 14, "muted end") if is_first else (x + 14, "muted")
        yield text(place[0], start + 18 + 15 * number, line, place[1], LEFT - 80 if is_first else RIGHT - 20)


def steps(story: Story) -> Iterator[str]:
    y = HEAD - ROW
    for step in story.steps:
        if isinstance(step, Begin | End):
            continue
        y += ROW
        if step.at:
            yield text(16, y + 4, step.at, "muted", 60)
        if isinstance(step, Call):
            yield from arrow(story, step, y)
        elif isinstance(step, Dies):
            yield from death(story, step, y)
        else:
            yield from note(story, step, y)


def arrow(story: Story, call: Call, y: int) -> Iterator[str]:
    """Its label is in the gap next to its source, where no other participant is in the way."""
    start, end = story.x(call.source), story.x(call.target)
    way = 1 if end > start else -1
    middle = start + way * GAP // 2
    style, head = ("bad", "badhead") if call.lost or call.refused else ("arrow", "head")
    begins, tip = start + way * 8, end - way * 8
    if call.lost:  # it ends halfway, with a cross
        tip = end - way * 34
        yield cross(tip, y)
        tip -= way * 8
    dashed = " dashed" if call.lost else ""
    yield f'<line class="{style}{dashed}" x1="{begins}" y1="{y}" x2="{tip}" y2="{y}"/>'
    if not call.lost:
        yield f'<path class="{head}" d="M{tip} {y}l{-way * 9} -4.5v9z"/>'
    yield text(middle, y - 6, call.text, "middle", GAP - 24)
    if call.answer:
        yield text(middle, y + 18, call.answer, f"middle {'red' if call.lost or call.refused else 'muted'}", GAP - 24)


def death(story: Story, step: Dies, y: int) -> Iterator[str]:
    x = story.x(step.participant)
    yield cross(x, y, 8)
    yield text(x + 16, y + 4, step.text, "red", GAP - 28)


def note(story: Story, step: Note, y: int) -> Iterator[str]:
    x, half = story.x(step.participant), round(len(step.text) * CHARACTER / 2) + 9
    yield f'<rect class="box" x="{x - half}" y="{y - 12}" width="{2 * half}" height="24" rx="12"/>'
    yield text(x, y + 4, step.text, "middle", GAP)


def cross(x: int, y: int, size: int = 5) -> str:
    return f'<path class="bad" d="M{x - size} {y - size}l{2 * size} {2 * size}m0 {-2 * size}l{-2 * size} {2 * size}"/>'


def text(x: int, y: int, words: str, style: str, room: int) -> str:
    if len(words) * CHARACTER > room:
        raise DoesNotFit(f"{words!r} needs {len(words) * CHARACTER:.0f} px and has {room}")
    return f'<text class="{style}" x="{x}" y="{y}">{escape(words)}</text>'


def drawings() -> dict[str, str]:
    """The text of each file, by its name."""
    return {f"{story.name}.svg": drawing(story) for story in STORIES}


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, svg in drawings().items():
        (folder / name).write_text(svg, encoding="utf-8")
