"""How the CPU per message is spent: the samples of sampler.py from a worker under load, as tables and a flame graph.

The CPU time of a thread comes from the kernel; samples only divide it among functions. So the figures add up to what
the process really used.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from html import escape

from broker_bench import machine
from broker_bench.targets import Unavailable
from consumer_bench.sampler import GO, NAME, THREADS
from consumer_bench.site import Worker
from peer_bench.tables import Table

SHOWN = 25  # functions
HEADER = "Stack (most recent call first):\n"
FRAME = re.compile(r'  File "(?:.*/(?:src|site-packages|python3\.\d+|bench)/)?([^"]*)", line \d+ in (\S+)')
BEGINNING = ("threading.py _bootstrap", "threading.py _bootstrap_inner", "threading.py run")  # of every thread

Stack = tuple[str, ...]  # the role of the thread, then its functions from outermost to innermost


@dataclass(frozen=True)
class Profile:
    """CPU microseconds per message, by role and by stack. The more `samples`, the more reliable the values by stack."""

    messages: int
    seconds: float
    samples: int
    threads: Counter[str]
    roles: dict[str, float]
    stacks: dict[Stack, float]


def profile(worker: Worker, seconds: float) -> Profile:
    """Profile a worker that has the sampler."""
    folder, pid = worker.samples, worker.pid
    before, deleted, began = _cpu_by_thread(pid), worker.deleted(), time.perf_counter()
    (folder / GO).touch()
    while time.perf_counter() - began < seconds:
        worker.check_running()
        time.sleep(0.1)
    after, messages, took = _cpu_by_thread(pid), worker.deleted() - deleted, time.perf_counter() - began
    if not messages:
        raise Unavailable(f"it deleted nothing while it was sampled: {worker.last_words()}")
    names = dict(line.split() for line in (folder / THREADS).read_text().splitlines())
    threads: Counter[str] = Counter()
    roles: dict[str, float] = defaultdict(float)
    for thread, used in after.items():
        name = names.get(str(thread), "(no Python thread)")
        if name == NAME:
            continue
        threads[name] += 1
        roles[name] += (used - before.get(thread, 0.0)) / messages * 1e6
    sampled = {path.stem: stacks(path.read_text(errors="replace")) for path in folder.glob("*.stacks")}
    sampled.pop(NAME, None)
    shared = {
        (name, *frames): roles[name] * count / counts.total()
        for name, counts in sampled.items()
        for frames, count in counts.items()
    }
    return Profile(messages, took, sum(each.total() for each in sampled.values()), threads, dict(roles), shared)


def stacks(text: str) -> Counter[Stack]:
    """How often each stack was seen. Stacks that two threads of a role have garbled by writing at once are left out."""
    counts: Counter[Stack] = Counter()
    for dump in text.split(HEADER)[1:]:
        lines = [FRAME.fullmatch(line) for line in dump.splitlines()]
        frames = [f"{match[1]} {match[2]}" for match in reversed(lines) if match]
        if frames and len(frames) == len(lines) and frames.count(BEGINNING[0]) <= 1:
            counts[tuple(frame for frame in frames if frame not in BEGINNING)] += 1
    return counts


def _cpu_by_thread(pid: int) -> dict[int, float]:
    """CPU seconds of the living threads."""
    seconds = {}
    for task in (machine.PROC / str(pid) / "task").iterdir():
        try:
            seconds[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
        except OSError:
            continue  # the thread has ended
    return seconds


# Tables.


def roles_table(profile: Profile) -> Table:
    total = sum(profile.roles.values())
    lines: Table = [("thread role", "threads", "CPU µs per message", "share")]
    for name in _highest(profile.roles):
        used = profile.roles[name]
        lines.append((name, str(profile.threads[name]), f"{used:.1f}", f"{used / total:.1%}"))
    return [*lines, ("all", str(profile.threads.total()), f"{total:.1f}", "100.0%")]


def functions_table(profile: Profile) -> Table:
    """The functions with the highest CPU of their own."""
    own: dict[str, float] = defaultdict(float)
    with_callees: dict[str, float] = defaultdict(float)
    for (_, *frames), used in profile.stacks.items():
        for frame in set(frames):
            with_callees[frame] += used
        if frames:
            own[frames[-1]] += used
    total = sum(profile.roles.values())
    lines: Table = [("function", "own CPU µs per message", "share", "with what it calls, µs")]
    for frame in _highest(own)[:SHOWN]:
        lines.append((frame, f"{own[frame]:.1f}", f"{own[frame] / total:.1%}", f"{with_callees[frame]:.1f}"))
    return lines


def _highest(values: dict[str, float]) -> list[str]:
    return sorted(values, key=lambda name: -values[name])


def collapsed(profile: Profile) -> str:
    """Collapsed stacks for flame graph tools and speedscope, in nanoseconds per message."""
    return "".join(f"{';'.join(stack)} {used * 1000:.0f}\n" for stack, used in sorted(profile.stacks.items()))


# The flame graph.

WIDTH, LINE, TOP = 1400, 18, 46  # pixels
NARROWEST = 0.5  # pixels: narrower boxes are left out
CHARACTER = 6.6  # pixels
STYLE = (
    "text{font:11px ui-monospace,monospace;fill:#1f2328;pointer-events:none}.head{font-size:14px}"
    "rect{stroke:#fff;stroke-width:.5}g:hover rect{stroke:#000;stroke-width:1}"
)
# Semel's own code, its ledger and client, and everything else.
COLOURS = (("semel/ledger/", "#8ec5a8"), ("semel/sqs/", "#9dbce8"), ("semel/", "#f2b880"), ("semel-", "#e6e6e6"))


def flame_graph(profile: Profile, title: str) -> str:
    """A self-contained SVG: callers are above, the width is CPU, and hovering shows names and figures."""
    total = sum(profile.stacks.values())
    scale = (WIDTH - 20) / total
    boxes: list[str] = []
    depth = _draw(sorted(profile.stacks.items()), 0, 10.0, scale, total, boxes)
    height = TOP + (depth + 1) * LINE
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">'
        f'<style>{STYLE}</style><rect width="{WIDTH}" height="{height}" fill="#fff"/>'
        f'<text class="head" x="10" y="20">{escape(title)}</text>'
        f'<text x="10" y="38">{total:.1f} µs of CPU per message; {profile.samples:,} samples. Orange: consumer, '
        "green: ledger, blue: SQS client, yellow: all else, grey: thread roles</text>"
    )
    return head + "\n".join(boxes) + "\n</svg>\n"


def _draw(
    stacks: list[tuple[Stack, float]], depth: int, left: float, scale: float, total: float, boxes: list[str]
) -> int:
    """Draw the functions at this depth of stacks that are equal above it; returns the greatest depth that has a box."""
    below: dict[str, list[tuple[Stack, float]]] = defaultdict(list)
    for stack, used in stacks:
        if len(stack) > depth:
            below[stack[depth]].append((stack, used))
    deepest = depth
    for frame, inside in below.items():
        used = sum(each for _, each in inside)
        width = used * scale
        if width >= NARROWEST:
            boxes.append(_box(frame, used, used / total, left, TOP + depth * LINE, width))
            deepest = max(deepest, _draw(inside, depth + 1, left, scale, total, boxes))
        left += width
    return deepest


def _box(frame: str, used: float, share: float, left: float, top: int, width: float) -> str:
    colour = next((colour for start, colour in COLOURS if frame.startswith(start)), "#f0e08c")
    label = frame.rpartition(" ")[2][: int((width - 6) / CHARACTER)]
    text = f'<text x="{left + 3:.1f}" y="{top + 13}">{escape(label)}</text>' if len(label) > 2 else ""
    return (
        f"<g><title>{escape(frame)}: {used:.1f} µs per message, {share:.1%}</title>"
        f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{LINE - 1}" fill="{colour}"/>{text}</g>'
    )
