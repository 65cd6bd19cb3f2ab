"""What the desk answers with, as small values that `dataclasses.asdict` turns into JSON, letters apart (`as_json`)."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import Any

from semel.dlq import fingerprints
from semel.dlq.model import DeadLetter


@dataclass(frozen=True, slots=True)
class Cost:
    """What looking cost: nothing where the broker lets us peek, else receives, which count against every message."""

    receives: int = 0  # calls of ReceiveMessage
    messages: int = 0  # whose receive count went up by one
    kept_back: int = 0  # that could not be given back at once, and come back by themselves

    def __str__(self) -> str:
        if not self.receives:
            return ""
        text = f"{_many(self.receives, 'receive')}; the receive count of {_many(self.messages, 'message')} went up by 1"
        late = f"; {_many(self.kept_back, 'message')} will be visible again within seconds"
        return text + late if self.kept_back else text


@dataclass(frozen=True, slots=True)
class Letters:
    """Letters that match. `next`: what to pass as `after` for more; None where there are none, or nobody can say."""

    letters: tuple[DeadLetter, ...]
    next: str | None = None
    looked_at: int = 0
    complete: bool = True  # whether all of the queue was looked at
    cost: Cost = Cost()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Letters with the same error but for numbers, ids and quoted text. `where` is the filter that selects them."""

    fingerprint: str
    shape: str
    sample: str  # the newest error, as it was
    sample_id: str
    count: int
    first: float
    last: float
    where: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Groups:
    groups: tuple[Group, ...]  # the largest first
    matched: int
    looked_at: int
    complete: bool = True
    cost: Cost = Cost()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownMessages:
    """Exactly what was shown to somebody who is asked: an action on it touches none but these, and no more than these.

    By their `ids`. Where there are none, because they are too many, by `place` and `at`: up to this place in the queue,
    and those that matched at that time."""

    count: int
    ids: tuple[str, ...] | None = None
    place: int | None = None
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Impact:
    """What a drop or a redrive of these would touch. Not `complete`: there are more that nobody has looked at.

    `shown` is for the drop that follows, if somebody says yes to this."""

    count: int
    looked_at: int
    complete: bool = True
    oldest: float | None = None  # when it was sent
    newest: float | None = None
    groups: tuple[Group, ...] = ()
    cost: Cost = Cost()
    notes: tuple[str, ...] = ()
    shown: ShownMessages = ShownMessages(0, ())


@dataclass(frozen=True, slots=True)
class Exported:
    count: int
    looked_at: int
    path: str = ""
    complete: bool = True
    cost: Cost = Cost()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resent:
    """A copy that was sent. Not `deleted`: the original could not be removed; its key keeps it from running twice."""

    message_id: str
    queue: str
    key: str
    deleted: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a time, such as a deploy."""

    at: float
    text: str
    who: str = ""


def as_json(letter: DeadLetter, *, now: float | None = None) -> dict[str, Any]:
    """A letter as JSON knows it: for `--json` and the API. Binary attributes are base64."""
    found: dict[str, Any] = {
        name: getattr(letter, name)
        for name in (
            *(
                "id",
                "queue",
                "body",
                "body_bytes",
                "cut",
                "sent",
                "receives",
                "first_received",
                "expires",
                "visible_at",
            ),
            *("source", "key", "reason", "error", "why", "attempts", "redrives", "original_id", "group", "dedup"),
            *("sequence", "trace", "state", "by_semel"),
        )
    }
    found["fingerprint"] = fingerprints.of(letter)
    found["attributes"] = {
        name: {"type": one.type, "base64": b64encode(one.value).decode()}
        if isinstance(one.value, bytes)
        else {"type": one.type, "value": one.value}
        for name, one in letter.attributes.items()
    }
    found["system"] = dict(letter.system)
    if now is not None and letter.sent:
        found["age"] = max(0.0, now - letter.sent)
    return found


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
