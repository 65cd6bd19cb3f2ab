"""What a log's sentences say about a message: "Failed to process order 17" is a failed run.

The rule: of several known words, the one that says most about the outcome decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from semel.doctor.logs.mapping import DEFAULT_WORDS, LogMapping
from semel.doctor.text_format import clean, listed
from semel.telemetry.attempt_log import Step
from semel.telemetry.field_mapping import plain

MOST_PHRASES: Final = 30  # if there are more, the text contains names that vary
MOST_SHOWN: Final = 80  # characters
_PRECEDENCE: Final[tuple[Step, ...]] = (
    Step.DELETE_FAILED,
    Step.REJECTED,
    Step.DUPLICATE,
    Step.SKIPPED,
    Step.RETRIED,
    Step.RELEASED,
    Step.HEARTBEAT,
    Step.DELETED,
    Step.RECORDED,
    Step.RECEIVED,
    Step.STARTED,
)
_NOT: Final = frozenset({"not", "cannot", "unable", "failed", "fail", "failure", "error"})
_ONLY_ALONE: Final = frozenset({"true", "false", "end", "process", "handle", "execute", "run"})


def phrase_step(text: str) -> Step | None:
    """What a word or a sentence means; None if no word of it is known."""
    return LogMapping({}).step_of(text) or next((step for step, _ in _decisive(text)), None)


def event_words(texts: Mapping[str, int], field: str) -> tuple[dict[str, Step], str, list[str]]:
    """For the texts of a field: the words beyond the usual ones, the pattern that finds them, and doubts.

    There is a pattern only if the texts vary: "Processing order 17", "Processing order 18".
    """
    usual = LogMapping({})
    phrases = {text: step for text in texts if not usual.step_of(text) and (step := phrase_step(text))}
    unknown = [text for text in sorted(texts, key=lambda text: -texts[text]) if not phrase_step(text)]
    doubts = []
    if any(char.isdigit() for text in phrases for char in text) or len(phrases) > MOST_PHRASES:
        decisive = dict(word for text in texts for word in _words(text))
        words = {word: step for word, step in decisive.items() if DEFAULT_WORDS.get(word) is not step}
        alternatives = sorted(decisive, key=lambda word: (-len(word), word))
        pattern = rf"(?i)\b(?P<event>{'|'.join(word.replace('_', '[^a-z0-9]+') for word in alternatives)})\b"
        mapping = LogMapping({}, words={**DEFAULT_WORDS, **words}, pattern=pattern)
        doubts = [
            f'"{clean(text, MOST_SHOWN)}" in {field} is read as {read}, not as {step}'
            for text, step in phrases.items()
            if (match := re.search(pattern, text)) and (read := mapping.step_of(match["event"])) is not step
        ][:1]
    else:
        words, pattern = {plain(text): step for text, step in phrases.items()}, ""
    if unknown:
        quoted = [f'"{clean(text, MOST_SHOWN)}"' for text in unknown]
        doubts.append(f"{field} has words that are not known, {listed(quoted)}: say what they mean with --events")
    return words, pattern, doubts


def _words(text: str) -> Iterator[tuple[str, Step]]:
    step = LogMapping({}).step_of(text)
    if step:
        yield plain(text), step
    else:
        yield from ((word, step) for step, word in _decisive(text))


def _decisive(text: str) -> list[tuple[Step, str]]:
    """The step that a sentence means and the word that says so, plain; at most one."""
    tokens = plain(text).split("_")
    known: dict[Step, str] = {}
    for place, token in enumerate(tokens):
        for word in (f"{token}_{tokens[place + 1]}" if place + 1 < len(tokens) else "", token):
            if word not in _ONLY_ALONE and word in DEFAULT_WORDS:
                known.setdefault(DEFAULT_WORDS[word], word)
    negation = next((place for place, token in enumerate(tokens) if token in _NOT), None)
    for step, opposite in ((Step.DELETED, Step.DELETE_FAILED), (Step.RECORDED, Step.RETRIED)):
        if negation is not None and step in known:
            first, last = sorted((negation, tokens.index(known[step])))
            known.setdefault(opposite, "_".join(tokens[first : last + 1]))
    return [(step, known[step]) for step in _PRECEDENCE if step in known][:1]
