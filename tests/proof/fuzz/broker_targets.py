"""Targets for what the broker reads from a socket: bytes of HTTP, and calls in both protocols."""

from __future__ import annotations

from typing import Any, Final
from xml.etree import ElementTree

import orjson

from fuzz.broker_harness import CALLER, ORIGIN, Exchange, exchange, new_engine
from fuzz.complaints import no_error_logged
from semel.broker import protocol
from semel.broker.auth import Verifier
from semel.broker.engine import Engine, Received
from semel.broker.protocol import Protocol, json, query
from semel.sqs import errors
from semel.sqs.errors import Kind, ServiceError
from semel.sqs.service_model import operations

KINDS: Final = [kind for kind in vars(errors).values() if isinstance(kind, Kind)]
SHAPES: Final = {f"com.amazonaws.sqs#{kind.shape}" for kind in KINDS}
CODES: Final = {kind.code for kind in KINDS}
MAX_CALLS: Final = 12
VERIFIER: Final = Verifier({"AKIDEXAMPLE": "secret"})
_ID: Final = "0" * 32

json.warm_up()


def fuzz_http(data: bytes) -> None:
    """Bytes of a client, whole or in pieces: every complete request is answered in order. Each answer is HTTP with a
    correct length, and a success or a well-formed error of SQS. No 5xx, no exception, no missing answer.

    The first byte sets the size of the pieces; if it is 128 or more, signatures are checked."""
    first, data = (data[0], data[1:]) if data else (0, b"")
    size, verifier = first % 128 or max(1, len(data)), VERIFIER if first >= 128 else None
    pieces = [data[at : at + size] for at in range(0, len(data), size)][:500]
    with no_error_logged():
        result = exchange(pieces, verifier)
    if result.faults:  # a request has switched faults on: any answer is allowed, or none
        return
    assert not result.unanswered, f"{len(result.unanswered)} of {len(result.requests)} requests were never answered"
    _check_answers(result)


def _check_answers(result: Exchange) -> None:
    rest, methods = result.written, [request.method for request in result.requests]
    while rest:
        head, end, rest = rest.partition(b"\r\n\r\n")
        assert end, f"an answer without an end to its head: {head!r}"
        first, *lines = head.split(b"\r\n")
        status = int(first.split()[1])
        assert first.startswith(b"HTTP/1.1 "), first
        if status == 100:
            continue
        headers = dict(line.lower().split(b": ", 1) for line in lines)
        size = 0 if methods[:1] == ["HEAD"] else int(headers[b"content-length"])
        body, rest = rest[:size], rest[size:]
        assert len(body) == size, "an answer that is shorter than it says"
        assert status < 500, f"{first!r} {body!r}"
        method = methods.pop(0) if methods else "refused by the HTTP edge"
        if method != "HEAD":
            check_body(status, headers[b"content-type"], body)
    assert not methods, "fewer answers than requests"


def check_body(status: int, content_type: bytes, body: bytes) -> None:
    """Check that an answer has the format of its content type, and that an error is one of SQS's."""
    if content_type == json.CONTENT_TYPE:
        content = orjson.loads(body) if body else {}
        assert (status < 400) is ("__type" not in content), body
        assert status < 400 or content["__type"] in SHAPES, body
    elif content_type == query.XML_TYPE:
        tree = ElementTree.fromstring(body)
        code = tree.findtext(".//{*}Code")
        assert status < 400 or code in CODES or tree.tag == "UnknownOperationException", body
    elif content_type == b"application/json":
        content = orjson.loads(body)
        assert status < 400 or {"Error", "error"} & content.keys(), body
    else:
        assert content_type.startswith(b"text/plain"), content_type


def fuzz_calls(data: bytes) -> None:
    """Lines of `Operation {parameters}`: each call has a result that both protocols can write, or an error of SQS that
    is the caller's fault. Afterwards, an engine that is started from the database has the same state in memory."""
    engine = new_engine()
    engine.begin()
    for line in data.split(b"\n")[:MAX_CALLS]:
        name, _, body = line.partition(b" ")
        try:
            call = protocol.parse("POST", "/", {b"x-amz-target": b"AmazonSQS." + name}, body, ORIGIN)
            result = engine.call(call.operation.name, call.params, CALLER)
        except ServiceError as error:
            assert error.kind in KINDS
            assert error.kind.status < 500, error
            for kind in Protocol:
                check_body(error.kind.status, *protocol.error_answer(kind, error, _ID))
            continue
        if isinstance(result, Received):
            assert orjson.loads(result.json) == result.as_dict()
            result = result.as_dict()
        for kind in Protocol:
            check_body(200, *protocol.answer(call._replace(protocol=kind), result, _ID))
    engine.flush()
    engine.commit()
    engine.committed()
    assert _known(engine) == _known(Engine(engine.store.db, engine.store.rng, cooldowns=False))
    engine.close()


def _known(engine: Engine) -> dict[str, Any]:
    return {
        name: (queue.attributes, queue.tags, queue.generation.counts) for name, queue in engine.store.queues.items()
    }


def fuzz_json_reader(data: bytes) -> None:
    """`Operation {parameters}`: the fast reader and the exact check read the same from every body, or the exact check
    refuses it with an error of SQS. The fast reader skips members that the model does not know, even if they are not
    Unicode."""
    name, _, body = data.partition(b" ")
    operation = operations().get(name.decode("latin-1"))
    if operation is None:
        return
    try:
        fast = json._readers[b"AmazonSQS." + name](body)
    except Exception:  # noqa: BLE001 - after any error, the exact check decides
        fast = None
    try:
        exact = json._exactly(operation, body)
    except ServiceError as error:
        assert error.kind.status < 500
        assert fast is None or _is_not_json(error), f"the fast reader took what the exact check refuses: {error}"
        orjson.dumps(fast)  # raises if a text is not Unicode
        check_body(error.kind.status, *protocol.error_answer(Protocol.JSON, error, _ID))
        return
    assert fast is None or fast == exact, f"{fast!r} is not {exact!r}"


def _is_not_json(error: ServiceError) -> bool:
    return error.kind is errors.SERIALIZATION and "not valid JSON" in error.message


def fuzz_query_reader(data: bytes) -> None:
    """A form, as a query string or as a body: it gives parameters that the service model allows, or an error of SQS
    that both formats of this protocol can write."""
    method, target = ("POST", "/") if data[:1] != b"/" else ("GET", data.decode("latin-1"))
    try:
        operation, params = query.parse(method, target, data, ORIGIN)
    except ServiceError as error:
        assert error.kind.status < 500
        for kind in (Protocol.QUERY, Protocol.QUERY_AS_JSON):
            check_body(error.kind.status, *protocol.error_answer(kind, error, _ID))
        return
    assert operation.input.check(params, "request") == params
