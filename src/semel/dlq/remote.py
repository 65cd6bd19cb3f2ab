"""The desk of a dashboard elsewhere: the same methods over its JSON API, with the answers as the same values.

For operators who may reach the dashboard but not the queues. Who did it is then what the dashboard knows of the token.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from semel.dlq import edit as editing
from semel.dlq import queues as listing
from semel.dlq import snapshots
from semel.dlq.access import RECEIVE_TOO, PeekRisk
from semel.dlq.audit import AuditEntry
from semel.dlq.edit import Key, NoSuchMessage
from semel.dlq.job_control import JobNotRunning
from semel.dlq.jobs import Control, Job
from semel.dlq.messages import (
    DeadLetterMessage,
    DeadLetterQueue,
    ErrorGroup,
    ErrorGroups,
    Exported,
    Impact,
    MessagePage,
    ReceiveCost,
    Resent,
    ShownMessages,
)
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.selection import Selection
from semel.errors import SemelError
from semel.sqs.client.messages import as_attribute
from semel.telemetry.annotation_log import Annotation

SHOWN: Final = 100
_T = TypeVar("_T")


class RemoteError(SemelError):
    """The dashboard refused, failed, or does not answer. `status` is 0 where there was no answer."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token is for the address that was given, and for no other."""

    def redirect_request(self, *_: Any) -> None:
        return None


class RemoteDeadLetterService:
    """`RemoteDesk("https://semel.internal:9325", token)`: what `semel.dlq.service.Desk` does, done there."""

    remote: Final = True

    def __init__(self, url: str, token: str = "", *, timeout: float = 120.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RemoteError(f"{url!r} is no address of a dashboard; write http://host:9325")
        self.url = url.rstrip("/")
        self._token = token
        self._timeout = timeout
        self._opener = urllib.request.build_opener(_NoRedirect)

    @property
    def endpoint(self) -> str:
        return self.url

    def address(self, info: DeadLetterQueue) -> str:
        """Where a queue is, in words, and through whom."""
        region = info.arn.split(":")[3] if info.arn.count(":") >= 5 else ""
        return f"{listing.address(info.url, region)}, through the dashboard at {self.url}"

    # Looking.

    def queues(self) -> list[DeadLetterQueue]:
        return [_made(DeadLetterQueue, row) for row in self._get("dead-letters")["queues"]]

    def queue(self, name: str) -> DeadLetterQueue:
        return _made(DeadLetterQueue, self._get(f"dead-letters/{_part(name)}"))

    def messages(
        self,
        queue: str,
        where: str = "",
        limit: int = SHOWN,
        after: str | None = None,
        *,
        bodies: bool = False,
        receive: bool = False,
    ) -> MessagePage:
        wanted = {"where": where, "limit": limit, "after": after, "bodies": int(bodies)}
        content = self._get(f"dead-letters/{_part(queue)}/messages", _receiving(wanted, receive))
        content["messages"] = tuple(map(_letter, content["messages"]))
        return _made(MessagePage, content)

    def groups(
        self, queue: str, where: str = "", *, max_scanned: int | None = None, receive: bool = False
    ) -> ErrorGroups:
        query = _receiving({"where": where, "most": max_scanned}, receive)
        content = self._get(f"dead-letters/{_part(queue)}/groups", query)
        return _made(ErrorGroups, content)

    def impact(
        self,
        queue: str,
        where: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        all: bool = False,
        receive: bool = False,
    ) -> Impact:
        query = _receiving(_query(where, ids, all), receive)
        return _made(Impact, self._get(f"dead-letters/{_part(queue)}/impact", query))

    def message(self, queue: str, id: str, *, receive: bool = False) -> DeadLetterMessage:
        try:
            return _letter(self._get(f"dead-letters/{_part(queue)}/messages/{_part(id)}", _receiving({}, receive)))
        except RemoteError as error:
            if error.status == 404:
                raise NoSuchMessage(str(error)) from None
            raise

    def find(self, queue: str, id: str, *, receive: bool = False) -> MessagePage:
        return MessagePage((self.message(queue, id, receive=receive),), None, 1)

    def export(
        self,
        queue: str,
        where: str | None = None,
        to: Path | IO[bytes] | None = None,
        ids: Sequence[str] | None = None,
        *,
        all: bool = False,
        any_queue: bool = False,
        receive: bool = False,
    ) -> Exported:
        lines = self.lines(queue, where, ids, all=all, any_queue=any_queue, receive=receive)
        if isinstance(to, Path):
            count = snapshots.write_lines(lines, to)
            return Exported(count, count, str(to))
        count = 0
        for line in lines:
            if to is not None:
                to.write(line)
            count += 1
        return Exported(count, count)

    def lines(
        self,
        queue: str,
        where: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        all: bool = False,
        any_queue: bool = False,
        receive: bool = False,
    ) -> Iterator[bytes]:
        wanted = _receiving(_query(where, ids, all) | {"any_queue": int(any_queue) or None}, receive)
        with self._open("GET", f"dead-letters/{_part(queue)}/export", wanted) as answer:
            try:
                yield from answer
            except (OSError, http.client.HTTPException) as error:
                raise RemoteError(f"{self.url} broke off in the middle of the export: {error}; run it again") from None

    # Acting.

    def redrive(self, plan: RedrivePlan, *, receive: bool = False) -> Job:
        content = {name: value for name, value in plan.to_json().items() if value not in ("", [])}
        queue = content.pop("queue")
        return self._job("POST", f"dead-letters/{_part(queue)}/redrive", content, receive)

    def resend(
        self,
        queue: str,
        id: str,
        *,
        body: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        group: str | None = None,
        key: str | Key = Key.KEEP,
        to: str = "",
        any_queue: bool = False,
        receive: bool = False,
    ) -> Resent:
        given: dict[str, Any] = {"body": body, "group": group, "to": to, "any_queue": any_queue}
        if attributes is not None:
            given["attributes"] = {name: _written(one) for name, one in editing.read_attributes(attributes).items()}
        if key is not Key.KEEP:
            given["new_key"] = "auto" if key is Key.NEW else key
        path = f"dead-letters/{_part(queue)}/messages/{_part(id)}/resend"
        content = {name: one for name, one in given.items() if one is not None}
        return _made(Resent, self._ask("POST", path, content, {"receive": int(receive) or None}))

    def delete(
        self,
        queue: str,
        where: str | None = None,
        snapshot: Path | None = None,
        *,
        ids: Sequence[str] | None = None,
        all: bool = False,
        shown: ShownMessages | None = None,
        any_queue: bool = False,
        receive: bool = False,
    ) -> Job:
        """The snapshot stays with the dashboard; the job's result has its path there."""
        if snapshot is not None:
            raise RemoteError("the dashboard keeps the snapshot itself: leave --snapshot out, or export first")
        chosen = _query(where, ids, all)
        if shown is None:
            shown = self.impact(queue, where, ids, all=all, receive=receive).shown
        content = {"where": where, "ids": chosen["id"], "all": all, "shown": asdict(shown), "any_queue": any_queue}
        content = {name: value for name, value in content.items() if value is not None}
        return self._job("POST", f"dead-letters/{_part(queue)}/delete", content, receive)

    def restore(self, source: Path | Iterable[bytes], queue: str = "") -> Job:
        content = source.read_bytes() if isinstance(source, Path) else b"".join(source)
        if not queue:
            name = source.name if isinstance(source, Path) else "the letters"
            lines = [line for line in content.split(b"\n") if line.strip()]
            queues = {snapshots.read(line, number, name).queue for number, line in enumerate(lines, 1)}
            if len(queues) != 1:
                raise RemoteError(f"{name} has letters of {len(queues)} queues: name one that all go to with --to")
            (queue,) = queues
            if not self.queue(queue).sources:
                raise RemoteError(
                    f"{name} has messages for {queue}, which is not the dead-letter queue of any queue, so nothing was "
                    f"sent; if they are to go there, say so with --to {queue}"
                )
        return self._job("POST", f"dead-letters/{_part(queue)}/restore", content)

    # Jobs, the log, marks.

    def jobs(self) -> list[Job]:
        return [Job.from_json(one) for one in self._get("jobs")["jobs"]]

    def job(self, id: str) -> Job:
        return self._job("GET", f"jobs/{_part(id)}")

    def control(self, id: str, action: str) -> Control:
        try:
            content = self._ask("POST", f"jobs/{_part(id)}/{_part(action)}")
        except RemoteError as error:
            if error.status == 409:
                raise JobNotRunning(str(error)) from None
            raise
        return Control(Job.from_json(content), action, acknowledged=bool(content.get("acknowledged")))

    def audit_entries(self, where: str = "", limit: int | None = 100) -> list[AuditEntry]:
        rows = self._get("audit", {"where": where, "limit": min(limit or 1_000, 1_000)})["rows"]
        return [_made(AuditEntry, row) for row in rows]

    def annotate(self, text: str) -> Annotation:
        return _made(Annotation, self._ask("POST", "annotations", {"text": text}))

    def annotations(self, since: float = 0.0) -> list[Annotation]:
        return [_made(Annotation, row) for row in self._get("annotations", {"since": since})["annotations"]]

    # Asking.

    def _job(
        self, method: str, path: str, content: Mapping[str, Any] | bytes | None = None, receive: bool = False
    ) -> Job:
        return Job.from_json(self._ask(method, path, content, {"receive": 1} if receive else None))

    def _get(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._ask("GET", path, None, query)

    def _ask(
        self,
        method: str,
        path: str,
        content: Mapping[str, Any] | bytes | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        try:
            with self._open(method, path, query, content) as answer:
                found = json.load(answer)
        except (ValueError, OSError, http.client.HTTPException) as error:
            raise RemoteError(
                f"{self.url} gave an answer that cannot be read: {error}; is a dashboard there?"
            ) from None
        if not isinstance(found, dict):
            raise RemoteError(f"{self.url} gave an answer that is none of a dashboard")
        return found

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        content: Mapping[str, Any] | bytes | None = None,
    ) -> http.client.HTTPResponse:
        pairs = {name: value for name, value in (query or {}).items() if value not in (None, "", ())}
        url = f"{self.url}/api/v1/{path}{'?' if pairs else ''}{urlencode(pairs, doseq=True)}"
        data = content if isinstance(content, bytes) else None if content is None else json.dumps(content).encode()
        headers = {"Accept": "application/json"}
        if data is not None:
            lines = isinstance(content, bytes)
            headers["Content-Type"] = "application/x-ndjson" if lines else "application/json"
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        try:
            answer: http.client.HTTPResponse = self._opener.open(request, timeout=self._timeout)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise RemoteError(f"no answer from the dashboard at {self.url}: {reason}; is it running?") from None
        return answer

    def _refused(self, error: urllib.error.HTTPError) -> SemelError:
        try:
            content = json.loads(error.read())
            if error.code == 409 and content.get("what_to_do") == RECEIVE_TOO:
                return PeekRisk(content["error"])
            text = ": ".join(part for part in (content["error"], content.get("what_to_do")) if part)
        except (ValueError, KeyError, TypeError, OSError):
            text = f"the dashboard at {self.url} answered with HTTP {error.code}"
        if error.code == 401:
            text = f"{text}; pass its token with --token or SEMEL_TOKEN"
        return RemoteError(text, error.code)


def _query(where: str | None, ids: Sequence[str] | None, all: bool) -> dict[str, Any]:
    """A selection as the API knows it; what selects nothing is refused here, and not sent."""
    Selection.of(where, ids, all)
    return {"where": where, "id": None if ids is None else list(ids), "all": 1 if all else None}


def _part(text: str) -> str:
    return quote(text, safe="")


_NESTED: Final[Mapping[str, Callable[[Any], Any]]] = {
    "cost": lambda value: _made(ReceiveCost, value),
    "groups": lambda value: tuple(_made(ErrorGroup, one) for one in value),
    "sources": tuple,
    "notes": tuple,
    "shown": lambda value: _made(ShownMessages, value),
    "ids": lambda value: None if value is None else tuple(value),
}


def _made(kind: type[_T], content: Mapping[str, Any]) -> _T:
    """The value that an answer stands for; what a newer dashboard says beyond it is left out."""
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    try:
        return kind(
            **{name: _NESTED.get(name, lambda value: value)(one) for name, one in content.items() if name in known}
        )
    except TypeError as error:
        raise RemoteError(f"the dashboard's answer is not understood ({error}); is it of the same version?") from None


def _letter(content: Mapping[str, Any]) -> DeadLetterMessage:
    known = dict(content)
    for name in ("attributes", "carried"):
        known[name] = {key: snapshots.attribute(one) for key, one in content[name].items()}
    return _made(DeadLetterMessage, known)


def _written(value: Any) -> dict[str, str]:
    kind, content = as_attribute(value)
    if isinstance(content, bytes):
        return {"type": kind, "base64": b64encode(content).decode()}
    return {"type": kind, "value": content}


def _receiving(query: Mapping[str, Any], receive: bool) -> dict[str, Any]:
    return {**query, "receive": int(receive) or None}
