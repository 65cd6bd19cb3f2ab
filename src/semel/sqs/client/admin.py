"""The client of the broker's admin interface, which goes beyond SQS: peek, receive by id, faults, history.

`Admin.of(client)` is None if the endpoint is not Semel's broker. Requests are signed like the client's calls.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import orjson

from semel.sqs.client.messages import Received
from semel.sqs.errors import CredentialsRefused, SqsError

if TYPE_CHECKING:
    from semel.sqs.client.client import Client
    from semel.sqs.client.connection import Answer

MOST: Final = 1_000  # messages in one answer, ids in one request
_ATTEMPTS: Final = 3


class AdminError(SqsError):
    """The broker's admin interface refused a request, or its answer cannot be read. Check that the endpoint is a Semel
    broker, and follow the text."""


@dataclass(frozen=True, slots=True)
class Page:
    """Messages in the order of the queue, as SQS shows them, with `State`, `Place`, `ExpiresAt` and others.

    Pass `next` as `after` to get the next page; it is None at the end of the queue. Pass `end` as `after` to get only
    messages that arrive after this answer. `scanned` also counts the messages that `word` excluded."""

    messages: list[dict[str, Any]]
    next: int | None
    end: int
    scanned: int


class Admin:
    """The admin interface of the broker that `client` talks to."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @classmethod
    def of(cls, client: Client) -> Admin | None:
        """None if the endpoint is not Semel's broker, or answers only with server errors. Any other answer is cached
        for this client. Raises if nothing answers."""
        with _lock:
            known = _known.get(client)
        if known is None:
            known = _is_broker(client)
            if known is not None:
                with _lock:
                    _known[client] = known
        return cls(client) if known else None

    # Reading.

    def health(self) -> dict[str, Any]:
        """The broker's version, and `now`: the time of its clock."""
        return self._get("health")

    def queues(self) -> list[dict[str, Any]]:
        """Every queue of the client's region and account, with its name, ARN, attributes, and counts: visible,
        in_flight, delayed, oldest_age …"""
        rows: list[dict[str, Any]] = self._get("queues")["queues"]
        # The broker lists queues of other regions and accounts under their ARNs.
        return [row for row in rows if row["name"] != row["arn"]]

    def peek(
        self,
        queue: str,
        *,
        after: int = 0,
        limit: int = MOST,
        bodies: bool = True,
        ids: Sequence[str] | None = None,
        state: str | None = None,
        group: str | None = None,
        word: str | None = None,
    ) -> Page:
        """One page. Without `bodies`, each body is cut to its first 200 characters, and `BodyBytes` has its length.

        `word` selects messages whose attributes may contain it, in upper or lower case, and includes a few others.
        A page may have fewer than `limit` messages, or none, and still have a `next`, so that no request takes long."""
        wanted: dict[str, Any] = {"after": after, "limit": limit, "bodies": bodies}
        optional = {"state": state, "group": group, "ids": ids, "word": word}
        wanted |= {name: value for name, value in optional.items() if value is not None}
        answer = self._ask("POST", f"queues/{quote(queue, safe='')}/messages", wanted)
        messages = answer["Messages"]
        return Page(messages, answer.get("Next"), answer["End"], answer.get("Scanned", len(messages)))

    def messages(self, queue: str, *, after: int = 0, limit: int = MOST, **wanted: Any) -> Iterator[dict[str, Any]]:
        """All messages that match, fetched page by page; `limit` is the size of a page."""
        place: int | None = after
        while place is not None:
            page = self.peek(queue, after=place, limit=limit, **wanted)
            yield from page.messages
            place = page.next

    def history(self, queues: Sequence[str] = (), since: float = 0.0) -> dict[str, Any]:
        pairs = [f"queue={quote(queue, safe='')}" for queue in queues] + ([f"since={since:.3f}"] if since > 0 else [])
        return self._get(f"history{'?' if pairs else ''}{'&'.join(pairs)}")

    # Receiving.

    def receive_ids(
        self, queue: str, ids: Sequence[str], *, visibility: int = 30, places: Sequence[int] | None = None
    ) -> list[Received]:
        """Receives the messages with these ids, in this order; those that do not exist or are not visible are left out.

        At most 1,000 in one call. With `places`, as a peek returned them, the broker need not search for the ids. The
        caller has to keep the order of FIFO groups."""
        body: dict[str, Any] = {"ids": list(ids), "visibility": visibility}
        if places is not None:
            body["places"] = list(places)
        answer = self._ask("POST", f"queues/{quote(queue, safe='')}/receive", body)
        return [Received.from_wire(message) for message in answer["Messages"]]

    # Faults and the clock.

    def faults(self) -> dict[str, Any]:
        return self._get("faults")

    def set_fault(
        self, kind: str, rate: float, *, queue: str | None = None, milliseconds: float | None = None
    ) -> dict[str, Any]:
        setting = {"kind": kind, "rate": rate, "queue": queue, "milliseconds": milliseconds}
        return self._ask("PUT", "faults", setting)

    def clear_faults(self, kind: str | None = None) -> dict[str, Any]:
        return self._ask("DELETE", f"faults?kind={quote(kind, safe='')}" if kind else "faults")

    def clock(self) -> dict[str, Any]:
        return self._get("clock")

    def advance(self, seconds: float) -> dict[str, Any]:
        """Moves a manual clock."""
        return self._ask("POST", "clock/advance", {"seconds": seconds})

    # Asking.

    def _get(self, path: str) -> dict[str, Any]:
        return self._ask("GET", path)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        data = b"" if body is None else orjson.dumps(body)
        answer = self._client.exchange(method, f"/_semel/{path}", data)
        if answer.status in (401, 403):
            answer = self._mended(method, path, data, answer)
        try:
            content = orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            content = None
        if answer.status == 200 and isinstance(content, dict):
            return content
        said = content.get("error") or content.get("message") if isinstance(content, dict) else None
        text = said or f"an answer that cannot be read (HTTP {answer.status})"
        where = path.partition("?")[0]
        raise AdminError(f"{method} /_semel/{where} at {self._client.endpoint}: {text}", status=answer.status)

    def _mended(self, method: str, path: str, data: bytes, refused: Answer) -> Answer:
        """Repeats the request after a call of SQS, which corrects a wrong clock and renews expired credentials."""
        try:
            self._client.call("ListQueues", {"MaxResults": 1})
        except CredentialsRefused:
            raise
        except SqsError:
            return refused
        return self._client.exchange(method, f"/_semel/{path}", data)


_lock = threading.Lock()
_known: weakref.WeakKeyDictionary[Client, bool] = weakref.WeakKeyDictionary()


def _is_broker(client: Client) -> bool | None:
    """None if this cannot be determined: a server error may come from a proxy, and soon be over."""
    host = urlsplit(client.endpoint).hostname or ""
    if host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws")):
        return False
    for attempt in range(_ATTEMPTS):
        if attempt:
            client.pause(0.2 * attempt)
        answer = client.exchange("GET", "/_semel/health", signed=False)
        if answer.status < 500:
            break
    else:
        return None
    try:
        health = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return False
    return answer.status == 200 and isinstance(health, dict) and health.get("status") == "ok" and "now" in health
