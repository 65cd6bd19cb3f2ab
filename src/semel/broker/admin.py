"""The admin interface under /_semel/: peek, faults, clock, history, health; and /metrics for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import orjson

from semel.broker.clock import Clock, ManualClock
from semel.broker.engine import Caller, Engine, Wanted
from semel.broker.engine.peek import STATES
from semel.broker.faults import MEANING, FaultError, Faults
from semel.broker.http import Request, render
from semel.broker.metric_history import History
from semel.sqs import limits
from semel.sqs.errors import ServiceError
from semel.version import __version__

PREFIX: Final = "/_semel/"
_MAX_PEEKED: Final = 1_000
_FILTERS: Final = frozenset(
    {"state", "limit", "after", "id", "ids", "bodies", "group", "body", "attribute", "min_receives", "word"}
)
_NEWEST_PLACE: Final = 1 << 40
_METRICS_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"

# Each piece of work takes the time and returns (status, content) for JSON, or a text.
Work = Callable[[int], Any]


class AdminError(Exception):
    """What is wrong with an admin request, with the status that says so."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Admin:
    """Answers admin requests; each runs inside the broker's transaction, like any call."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        faults: Faults,
        history: History,
        time_passed: Callable[[], None],
        refusal: Callable[[Request], str | None],
    ) -> None:
        self._engine, self._clock, self._faults, self._history = engine, clock, faults, history
        self._time_passed, self._refusal = time_passed, refusal

    def serves(self, target: str) -> bool:
        return target.startswith((PREFIX, "/metrics"))

    def is_public(self, target: str) -> bool:
        """Health reveals nothing that is secret, and health checks can seldom sign requests."""
        return target == f"{PREFIX}health"

    def work(self, request: Request, caller_at: Callable[[int], Caller]) -> Callable[[int], bytes]:
        """What to do for a request. Anything that is wrong with it becomes a JSON answer that says so.

        A name means the queue of the caller's region and account; other queues are given, and shown, by their ARNs."""

        def answer(now: int) -> bytes:
            try:
                content = self._route(request, caller_at(now))(now)
            except AdminError as error:
                return _json(error.status, {"error": str(error)}, request)
            except FaultError as error:
                return _json(400, {"error": str(error)}, request)
            except ServiceError as error:
                return _json(404, {"error": error.message}, request)
            if isinstance(content, str):
                return render(200, _METRICS_TYPE, content.encode(), keep_alive=request.keep_alive)
            return _json(200, content, request)

        return answer

    def _route(self, request: Request, caller: Caller) -> Work:
        url = urlsplit(request.target)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if refusal := self._refusal(request):
            raise AdminError(403, refusal)
        own = self._engine.store.account
        if caller.access is not None and caller.account != own:
            # The admin interface shows everything, whatever policies say.
            raise AdminError(403, f"only users of the broker's own account, {own}, may use the admin interface")
        method = "GET" if request.method == "HEAD" else request.method
        match method, *unquote(url.path).strip("/").split("/"):
            case "GET", "metrics":
                from semel.broker.metrics import exposition

                return lambda now: exposition(self._engine, self._faults, now)
            case "GET", "_semel", "health":
                return lambda now: {"status": "ok", "version": __version__, "now": now / 1000}
            case "GET", "_semel", "queues":
                return lambda now: self._queues(caller, now)
            case "GET", "_semel", "queues", name, "messages":
                key = self._engine.key(name, caller)
                return lambda now: self._peek(key, query, parse_qs(url.query).get("attribute", []), now)
            case "POST", "_semel", "queues", name, "messages":
                key = self._engine.key(name, caller)
                return lambda now: self._peek_by(key, _body(request), now)
            case "POST", "_semel", "queues", name, "receive":
                key = self._engine.key(name, caller)
                return lambda _now: self._receive(key, _body(request), caller)
            case "GET", "_semel", "history":
                return lambda _now: self._past(parse_qs(url.query).get("queue", []), _since(query), caller)
            case "GET", "_semel", "faults":
                return lambda _now: self._described(caller) | {"kinds": MEANING}
            case "PUT", "_semel", "faults":
                return lambda _now: self._set_fault(_body(request), caller)
            case "DELETE", "_semel", "faults":
                return lambda _now: self._clear_faults(query.get("kind"), caller)
            case "GET", "_semel", "clock":
                return lambda now: {"now": now / 1000, "manual": self._clock.manual}
            case "POST", "_semel", "clock", "advance":
                return lambda _now: self._advance(_body(request))
            case _:
                raise AdminError(404, f"there is nothing at {request.method} {url.path}; see the documentation")

    def _queues(self, caller: Caller, now: int) -> dict[str, Any]:
        queues = [
            {"name": self._engine.shown(queue.key, caller), "arn": str(queue.arn), "fifo": queue.fifo}
            | {"attributes": queue.effective}
            | self._engine.measure(queue.key, now)._asdict()
            for queue in self._engine.store.queues.values()
        ]
        return {"queues": sorted(queues, key=lambda row: row["name"])}

    def _peek(self, name: str, query: dict[str, str], attributes: list[str], now: int) -> dict[str, Any]:
        unknown = query.keys() - _FILTERS
        if unknown:
            raise AdminError(400, f"there is no filter {min(unknown)!r}; choose from {', '.join(sorted(_FILTERS))}")
        if not all("=" in item for item in attributes):
            raise AdminError(400, "attribute is written NAME=VALUE")
        state = query.get("state") or None
        if state is not None and state not in STATES:
            raise AdminError(400, f"state is one of {', '.join(STATES)}, not {state!r}")
        pairs = dict(item.partition("=")[::2] for item in attributes)
        if query.get("bodies", "1") not in ("0", "1"):
            raise AdminError(400, "bodies is 0 or 1")
        wanted = Wanted(
            state,
            query.get("id"),
            query.get("group"),
            query.get("body"),
            pairs,
            _number(query, "min_receives", 0, 1 << 31),
            ids=frozenset(query["ids"].split(",")) if "ids" in query else None,
            bodies=query.get("bodies") != "0",
            word=_word(query),
        )
        limit = _number(query, "limit", 100, _MAX_PEEKED, least=1)
        after = _number(query, "after", 0, _NEWEST_PLACE)
        return self._engine.peek(name, wanted, after=after, limit=limit, now=now)

    def _peek_by(self, name: str, body: dict[str, Any], now: int) -> dict[str, Any]:
        """The same with its conditions as JSON, for more ids than a URL can hold."""
        query: dict[str, str] = {}
        ids = body.pop("ids", None)
        if ids is not None:
            _check_ids(ids)
        attributes = body.pop("attributes", {})
        if not isinstance(attributes, dict) or not all(isinstance(value, str) for value in attributes.values()):
            raise AdminError(400, 'attributes are written {"NAME": "VALUE"}')
        for key, value in body.items():
            if isinstance(value, bool):
                query[key] = str(int(value))
            elif isinstance(value, str | int):
                query[key] = str(value)
            else:
                raise AdminError(400, f"{key} is a text or a number")
        if ids is not None:
            query["ids"] = ",".join(ids)
        return self._peek(name, query, [f"{key}={value}" for key, value in attributes.items()], now)

    def _past(self, wanted: list[str], since: float, caller: Caller) -> dict[str, Any]:
        history = self._history.described([self._engine.key(name, caller) for name in wanted], since)
        return history | {
            "queues": {self._engine.shown(key, caller): columns for key, columns in history["queues"].items()}
        }

    def _receive(self, name: str, body: dict[str, Any], caller: Caller) -> dict[str, Any]:
        ids = _check_ids(body.get("ids"))
        places, visibility = body.get("places"), body.get("visibility", 30)
        if type(visibility) is not int or not 1 <= visibility <= limits.MAX_VISIBILITY:
            raise AdminError(400, f"visibility is in whole seconds from 1 to {limits.MAX_VISIBILITY}")
        if places is not None and not (
            isinstance(places, list)
            and len(places) == len(ids)
            and all(type(place) is int and 0 < place < _NEWEST_PLACE for place in places)
        ):
            raise AdminError(400, "places are as many numbers as there are ids, as a peek shows them")
        return self._engine.receive_ids(name, ids, places, visibility, caller)

    def _described(self, caller: Caller) -> dict[str, Any]:
        described = self._faults.described()
        for setting in described["faults"]:
            setting["queue"] = setting["queue"] and self._engine.shown(setting["queue"], caller)
        return described

    def _set_fault(self, body: dict[str, Any], caller: Caller) -> dict[str, Any]:
        kind, rate, queue, amount = (body.get(key) for key in ("kind", "rate", "queue", "milliseconds"))
        if not isinstance(kind, str) or rate is None:
            raise AdminError(400, 'a fault is set with {"kind": "duplicate", "rate": 0.05}, and "queue" for only one')
        if not isinstance(queue, str | None):
            raise AdminError(400, "queue is the name of a queue, or its ARN")
        key = None if queue is None else self._engine.key(queue, caller)
        self._faults.set(kind, rate, queue=key, milliseconds=amount)
        return self._described(caller)

    def _clear_faults(self, kind: str | None, caller: Caller) -> dict[str, Any]:
        self._faults.clear(kind)
        return self._described(caller)

    def _advance(self, body: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(self._clock, ManualClock):
            raise AdminError(409, "the clock is the system's; start the broker with --clock manual to move it")
        seconds = body.get("seconds")
        if not isinstance(seconds, int | float) or isinstance(seconds, bool):
            raise AdminError(400, 'the clock is moved with {"seconds": 5}')
        try:
            self._clock.advance(seconds)
        except ValueError as error:
            raise AdminError(400, str(error)) from None
        self._time_passed()
        return {"now": self._clock.now() / 1000, "manual": True}


def _body(request: Request) -> dict[str, Any]:
    try:
        body = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        raise AdminError(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise AdminError(400, "the body must be a JSON object")
    return body


def _check_ids(ids: Any) -> list[str]:
    if (
        not isinstance(ids, list)
        or not 1 <= len(ids) <= _MAX_PEEKED
        or not all(isinstance(message_id, str) and message_id and "," not in message_id for message_id in ids)
    ):
        raise AdminError(400, f"ids is a list of 1 to {_MAX_PEEKED} message ids")
    return ids


def _number(query: dict[str, str], name: str, default: int, most: int, *, least: int = 0) -> int:
    text = query.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,15}", text) or not least <= int(text) <= most:
        raise AdminError(400, f"{name} is a whole number from {least} to {most}, not {text!r}")
    return int(text)


def _word(query: dict[str, str]) -> str | None:
    text = query.get("word")
    if text is not None and not re.fullmatch(r"[A-Za-z0-9_]{1,100}", text):
        raise AdminError(400, f"word is made of 1 to 100 letters a to z, digits and _, not {text!r}")
    return None if text is None else text.lower()


def _since(query: dict[str, str]) -> float:
    text = query.get("since", "0")
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text):
        raise AdminError(400, f"since is in seconds since 1970, not {text!r}")
    return float(text)


def _json(status: int, content: Any, request: Request) -> bytes:
    body = orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE)
    return render(status, b"application/json", body, keep_alive=request.keep_alive)
