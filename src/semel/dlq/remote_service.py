"""The dead-letter service of a remote dashboard: the methods of `DeadLetterService`, over its JSON API.

For operators who can reach the dashboard but not the queues. The dashboard's audit log has the name that belongs to the
token.
"""

from __future__ import annotations

import http.client
import json
import logging
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any, Final, TypeVar, get_type_hints
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from semel import dashboard_token
from semel.dlq import edit as editing
from semel.dlq import queues as listing
from semel.dlq import snapshots
from semel.dlq.access import RECEIVE_TOO, PeekRisk
from semel.dlq.audit import AuditEntry
from semel.dlq.edit import Key, NoSuchMessage
from semel.dlq.jobs import Control, Job, JobNotRunning, JobRecord, NoSuchJob, polled
from semel.dlq.messages import (
    DeadLetterMessage,
    DeadLetterQueue,
    ErrorGroups,
    Exported,
    Impact,
    MessagePage,
    Resent,
    ShownMessages,
    attributes_as_json,
)
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.selection import Selection
from semel.dlq.service import SHOWN
from semel.errors import SemelError
from semel.sqs.client.messages import Attribute
from semel.telemetry.annotation_log import Annotation
from semel.text import reason

RETRY_FOR: Final = 120.0  # seconds without an answer, after which a running job is no longer polled
_MAX_BACKOFF: Final = 15.0
_POLL_TIMEOUT: Final = 15.0
_TRANSIENT: Final = (0, 429, 500, 502, 503, 504)
_JOB_ERRORS: Final[Mapping[int, type[SemelError]]] = {404: NoSuchJob, 409: JobNotRunning}
_NO_ERRORS: Final[Mapping[int, type[SemelError]]] = {}
_T = TypeVar("_T")
_log: Final = logging.getLogger("semel.dlq")


class RemoteError(SemelError):
    """The dashboard refused, failed, or did not answer. `status` is the HTTP status, or 0 if there was no answer. Check
    that the dashboard runs, its address and its token."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token is for the given address only."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(slots=True)
class _Followed:
    """A job that was running when it was last seen, and the failed polls since then."""

    job: Job
    failing_since: float | None = None
    failures: int = 0
    retry_at: float = 0.0


class RemoteDeadLetterService:
    """`RemoteDeadLetterService("https://semel.internal:9325", token)`."""

    remote: Final = True

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if not _is_http(url):
            raise RemoteError(f"{url!r} is not the address of a dashboard; write http://host:9325")
        self.url = url.rstrip("/")
        self._token = token or dashboard_token.find(self.url) or ""
        self._timeout = timeout
        self._clock, self._sleep = clock, sleep
        self._followed: dict[str, _Followed] = {}
        self._opener = urllib.request.build_opener(_NoRedirect)

    @property
    def endpoint(self) -> str:
        return self.url

    def address(self, info: DeadLetterQueue) -> str:
        """Where the queue is, and through which dashboard."""
        region = info.arn.split(":")[3] if info.arn.count(":") >= 5 else ""
        return f"{listing.address(info.url, region)}, through the dashboard at {self.url}"

    # Reading.

    def queues(self) -> list[DeadLetterQueue]:
        return self._convert(self._get("dead-letters")["queues"], list[DeadLetterQueue])

    def queue(self, name: str) -> DeadLetterQueue:
        return self._convert(self._get(f"dead-letters/{_part(name)}"), DeadLetterQueue)

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
        query = {"where": where, "limit": limit, "after": after, "bodies": int(bodies), "receive": receive}
        content = self._get(f"dead-letters/{_part(queue)}/messages", query)
        page = msgspec.structs.asdict(self._convert(content, _WirePage))
        return MessagePage(**page | {"messages": tuple(map(_message, page["messages"]))})

    def groups(self, queue: str, where: str = "", *, receive: bool = False) -> ErrorGroups:
        query = {"where": where, "receive": receive}
        return self._convert(self._get(f"dead-letters/{_part(queue)}/groups", query), ErrorGroups)

    def impact(
        self,
        queue: str,
        where: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        all: bool = False,
        receive: bool = False,
    ) -> Impact:
        content = self._get(f"dead-letters/{_part(queue)}/impact", _query(where, ids, all, receive))
        return self._convert(content, Impact)

    def message(self, queue: str, id: str, *, receive: bool = False) -> DeadLetterMessage:
        path = f"dead-letters/{_part(queue)}/messages/{_part(id)}"
        content = self._ask("GET", path, query={"receive": receive}, errors={404: NoSuchMessage})
        return _message(self._convert(content, _WireMessage))

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
        count = snapshots.write_lines(lines, to)
        return Exported(count, count, str(to) if isinstance(to, Path) else "")

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
        wanted = _query(where, ids, all, receive) | {"any_queue": any_queue}
        with self._open("GET", f"dead-letters/{_part(queue)}/export", wanted) as answer:
            try:
                yield from answer
            except (OSError, http.client.HTTPException) as error:
                raise RemoteError(
                    f"{self.url} closed the connection during the export: {error}; run it again"
                ) from None

    # Actions.

    def redrive(self, plan: RedrivePlan, *, receive: bool = False) -> Job:
        content = {name: value for name, value in plan.to_json().items() if value not in ("", [])}
        queue = content.pop("queue")
        return self._start(f"dead-letters/{_part(queue)}/redrive", content, receive)

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
        request: dict[str, Any] = {"body": body, "group": group, "to": to, "any_queue": any_queue}
        if attributes is not None:
            request["attributes"] = attributes_as_json(editing.read_attributes(attributes))
        if key is not Key.KEEP:
            request["new_key"] = "auto" if key is Key.NEW else key
        path = f"dead-letters/{_part(queue)}/messages/{_part(id)}/resend"
        request = {name: value for name, value in request.items() if value is not None}
        return self._convert(self._ask("POST", path, request, {"receive": receive}), Resent)

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
        """The snapshot is kept by the dashboard; the job's result has its path there."""
        if snapshot is not None:
            raise RemoteError("--snapshot cannot be used with --dashboard, which keeps the snapshot; or export first")
        Selection.of(where, ids, all)
        if shown is None:
            shown = self.impact(queue, where, ids, all=all, receive=receive).shown
        content: dict[str, Any] = {"all": all, "shown": asdict(shown), "any_queue": any_queue}
        content |= {name: value for name, value in (("where", where), ("ids", ids)) if value is not None}
        return self._start(f"dead-letters/{_part(queue)}/delete", content, receive)

    def restore(self, source: Path | Iterable[bytes], queue: str = "") -> Job:
        content = source.read_bytes() if isinstance(source, Path) else b"".join(source)
        if not queue:
            name = source.name if isinstance(source, Path) else "the file"
            lines = [line for line in content.split(b"\n") if line.strip()]
            queues = {snapshots.read(line, number, name).queue for number, line in enumerate(lines, 1)}
            if len(queues) != 1:
                raise RemoteError(
                    f"{name} has messages of {len(queues)} queues; choose the queue to restore to with --to"
                )
            (queue,) = queues
            if not self.queue(queue).sources:
                raise RemoteError(
                    f"nothing was sent: {name} has messages for {queue}, which is not the dead-letter queue of any "
                    f"queue; to restore to it anyway, add --to {queue}"
                )
        return self._start(f"dead-letters/{_part(queue)}/restore", content)

    # Jobs, audit log, annotations.

    def jobs(self) -> list[Job]:
        return [Job.of(record) for record in self._convert(self._get("jobs")["jobs"], list[JobRecord])]

    def job(self, id: str) -> Job:
        """A job. If it was running and the dashboard does not answer, returns its last known state for up to two
        minutes, because the job continues there."""
        followed, now = self._followed.get(id), self._clock()
        if followed is not None and now < followed.retry_at:
            return followed.job
        try:
            return self._follow(self._ask("GET", f"jobs/{_part(id)}", timeout=_POLL_TIMEOUT, errors=_JOB_ERRORS))
        except RemoteError as error:
            if followed is None or error.status not in _TRANSIENT:
                raise
            if followed.failing_since is None:
                followed.failing_since = now
                _log.warning("%s; job %s goes on there, retrying for up to %g s", error, id, RETRY_FOR)
            if now - followed.failing_since >= RETRY_FOR:
                raise RemoteError(
                    f"{error}\njob {id} may still be running there; see it with: {self._command('show', id)}",
                    error.status,
                ) from None
            followed.failures += 1
            followed.retry_at = now + min(_MAX_BACKOFF, 2.0 ** (followed.failures - 1))
            return followed.job

    def wait(self, id: str, timeout: float | None = None) -> Job:
        """Waits until the job has ended, or for `timeout` seconds, and returns it."""
        return polled(lambda: self.job(id), timeout, clock=self._clock, sleep=self._sleep)

    def control(self, id: str, action: str) -> Control:
        try:
            content = self._ask("POST", f"jobs/{_part(id)}/{_part(action)}", errors=_JOB_ERRORS)
        except RemoteError as error:
            if error.status in _TRANSIENT:
                raise RemoteError(
                    f"{error}\nit is not known whether job {id} was asked to {action}; see it with: "
                    f"{self._command('show', id)}",
                    error.status,
                ) from None
            raise
        return Control(self._follow(content), action, acknowledged=bool(content.get("acknowledged")))

    def audit_entries(self, where: str = "", limit: int | None = 100) -> list[AuditEntry]:
        content = self._get("audit", {"where": where, "limit": min(limit or 1_000, 1_000)})
        return self._convert(content["rows"], list[AuditEntry])

    def annotate(self, text: str) -> Annotation:
        return self._convert(self._ask("POST", "annotations", {"text": text}), Annotation)

    def annotations(self, since: float = 0.0) -> list[Annotation]:
        return self._convert(self._get("annotations", {"since": since})["annotations"], list[Annotation])

    # Requests.

    def _start(self, path: str, content: Mapping[str, Any] | bytes, receive: bool = False) -> Job:
        try:
            return self._follow(self._ask("POST", path, content, {"receive": receive}))
        except RemoteError as error:
            if error.status == 0:
                raise RemoteError(
                    f"{error}\nit is not known whether the job was started; see: {self._command('list')}"
                ) from None
            raise

    def _follow(self, content: Mapping[str, Any]) -> Job:
        job = Job.of(self._convert(content, JobRecord))
        if job.state.ended:
            self._followed.pop(job.id, None)
        else:
            self._followed[job.id] = _Followed(job)
        return job

    def _command(self, *arguments: str) -> str:
        return f"semel jobs {' '.join(arguments)} --dashboard {self.url}"

    def _convert(self, content: Any, kind: type[_T]) -> _T:
        """Ignores fields that `kind` does not have, which a newer dashboard may send."""
        try:
            return msgspec.convert(content, kind)
        except msgspec.ValidationError as error:
            raise RemoteError(
                f"the answer of the dashboard at {self.url} is not understood ({error}); is it of the same version?"
            ) from None

    def _get(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._ask("GET", path, None, query)

    def _ask(
        self,
        method: str,
        path: str,
        content: Mapping[str, Any] | bytes | None = None,
        query: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        errors: Mapping[int, type[SemelError]] = _NO_ERRORS,
    ) -> dict[str, Any]:
        """`errors`: what to raise instead of RemoteError, by HTTP status."""
        try:
            with self._open(method, path, query, content, timeout=timeout) as answer:
                answered = json.load(answer)
        except RemoteError as error:
            if error.status in errors:
                raise errors[error.status](str(error)) from None
            raise
        except (ValueError, RecursionError, OSError, http.client.HTTPException) as error:
            raise RemoteError(f"the answer of {self.url} cannot be read: {error}; is a dashboard there?") from None
        if not isinstance(answered, dict):
            raise RemoteError(f"the answer of {self.url} is not the one of a dashboard")
        return answered

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        content: Mapping[str, Any] | bytes | None = None,
        *,
        timeout: float | None = None,
    ) -> http.client.HTTPResponse:
        pairs = {
            name: 1 if value is True else value
            for name, value in (query or {}).items()
            if value is not False and value not in (None, "", ())
        }
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
            answer: http.client.HTTPResponse = self._opener.open(request, timeout=timeout or self._timeout)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from None
        except (OSError, http.client.HTTPException) as error:
            why = reason(getattr(error, "reason", None) or error)
            raise RemoteError(f"no answer from the dashboard at {self.url}: {why}; is it running?") from None
        return answer

    def _refused(self, error: urllib.error.HTTPError) -> SemelError:
        try:
            content = json.loads(error.read())
            if error.code == 409 and content.get("what_to_do") == RECEIVE_TOO:
                return PeekRisk(content["error"])
            text = ": ".join(part for part in (content["error"], content.get("what_to_do")) if part)
        except (ValueError, KeyError, TypeError, OSError, RecursionError):
            text = f"the dashboard at {self.url} answered with HTTP {error.code}"
        if error.code == 401:
            text = f"{text}; pass its token with --token or SEMEL_TOKEN"
        return RemoteError(text, error.code)


def _query(where: str | None, ids: Sequence[str] | None, all: bool, receive: bool) -> dict[str, Any]:
    """The selection as query parameters. Raises SelectionError if nothing is selected."""
    Selection.of(where, ids, all)
    return {"where": where, "id": ids, "all": all, "receive": receive}


def _part(text: str) -> str:
    return quote(text, safe="")


class _WireAttribute(msgspec.Struct):
    type: str
    value: str = ""
    base64: str | None = None

    def attribute(self) -> Attribute:
        return Attribute(self.type, self.value if self.base64 is None else b64decode(self.base64))


def _wire(kind: type, **replaced: Any) -> type[msgspec.Struct]:
    """A struct with the fields and defaults of the dataclass; `replaced` has the types that differ in JSON."""
    hints, wire_fields = get_type_hints(kind) | replaced, list[tuple[str, Any, Any]]()
    for known in fields(kind):
        default = known.default if known.default is not MISSING else msgspec.NODEFAULT
        if known.default_factory is not MISSING:
            default = msgspec.field(default_factory=known.default_factory)
        wire_fields.append((known.name, hints[known.name], default))
    return msgspec.defstruct(f"Wire{kind.__name__}", wire_fields)


_ATTRIBUTES: Final = [
    name for name, hint in get_type_hints(DeadLetterMessage).items() if hint == Mapping[str, Attribute]
]
_WireMessage: Final[Any] = _wire(DeadLetterMessage, **dict.fromkeys(_ATTRIBUTES, dict[str, _WireAttribute]))
_WirePage: Final[Any] = _wire(MessagePage, messages=list[_WireMessage])


def _message(wire: msgspec.Struct) -> DeadLetterMessage:
    values = msgspec.structs.asdict(wire)
    for name in _ATTRIBUTES:
        values[name] = {key: value.attribute() for key, value in values[name].items()}
    return DeadLetterMessage(**values)


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or IPv6 address
        return False
