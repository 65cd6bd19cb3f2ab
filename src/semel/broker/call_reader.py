"""Turns a request into a call: who sends it, whether they may, and what they ask for.

Rule: a call that is refused here has changed nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from random import Random
from time import time
from typing import Final

from semel.broker import protocol as wire
from semel.broker.auth import HttpRequest, Verifier
from semel.broker.callers import Callers
from semel.broker.calls import PendingCall
from semel.broker.engine import Access, Engine, Identity
from semel.broker.faults import Fault, Faults
from semel.broker.http import Request
from semel.broker.same_site import Origins
from semel.sqs.errors import ACCESS_DENIED, INTERNAL_FAILURE, REQUEST_THROTTLED, SERVICE_UNAVAILABLE, ServiceError

_LONGEST_AGENT: Final = 1_024


class CallReader:
    """Methods that refuse a call raise ServiceError."""

    def __init__(
        self, engine: Engine, faults: Faults, verifier: Verifier | None, allowed_hosts: Collection[str], rng: Random
    ) -> None:
        self._engine, self._faults, self._verifier, self._rng = engine, faults, verifier, rng
        self._callers = Callers(engine.store.region, engine.store.account)
        self.origins = Origins(allowed_hosts, signed=verifier is not None)
        self._id_pool, self._ids_used = "", 0

    @property
    def needs_raw_headers(self) -> bool:
        return self._verifier is not None

    def call_of(self, request: Request) -> PendingCall:
        """A call that is not read yet: it only has an id, and the protocol of its answer."""
        return PendingCall(request, self._new_id(), wire.protocol_of(request.headers), self._engine)

    def read(self, call: PendingCall) -> None:
        request = call.request
        self._authenticate(call)
        if refusal := self.origins.refusal_of_call(request):
            raise ServiceError(ACCESS_DENIED, refusal)
        call.origin = _origin(request)
        if b"x-amzn-trace-id" in request.headers:
            call.trace = request.header(b"x-amzn-trace-id") or None
        call.parsed = wire.parse(request.method, request.target, request.headers, request.body, call.origin)

    def authenticate_operator(self, call: PendingCall, *, public: bool) -> None:
        """Admin requests may also authenticate with a key pair as user and password. `public` ones need nothing."""
        if public:
            call.identity = self._callers.nobody
            return
        header = call.request.header(b"authorization")
        known = None if self._verifier is None else self._verifier.by_password(header)
        if known is None:
            self._authenticate(call)
        else:
            call.identity, call.access = known, _access(call.request, known)

    def delay(self, call: PendingCall) -> float:
        """Applies the faults that happen before a call is carried out. Returns the seconds by which to delay it."""
        if not self._faults.active:
            return 0.0
        queue = call.queue
        strikes = partial(self._faults.strikes, queue=queue, known=queue in self._engine.store.queues)
        if strikes(Fault.THROTTLE):
            raise ServiceError(REQUEST_THROTTLED, "The request was denied due to request throttling.")
        if strikes(Fault.SERVER_ERROR):
            if self._faults.chance(Fault.SERVER_ERROR) < 0.5:
                raise ServiceError(INTERNAL_FAILURE, "We encountered an internal error. Please try again.")
            raise ServiceError(SERVICE_UNAVAILABLE, "The service is temporarily unavailable. Please try again.")
        slow = strikes(Fault.LATENCY)
        return slow.milliseconds / 1000 if slow else 0.0

    def _new_id(self) -> str:
        """32 hexadecimal digits for a request; their randomness is drawn for many of them at a time."""
        at = self._ids_used
        if at == len(self._id_pool):
            at, self._id_pool = 0, self._rng.randbytes(16 * 256).hex()
        self._ids_used = at + 32
        return self._id_pool[at : at + 32]

    def _authenticate(self, call: PendingCall) -> None:
        request = call.request
        if self._verifier is None:
            call.identity = self._callers.of(request)
            return
        signed = HttpRequest(request.method, request.target, request.raw_headers, request.body)
        call.identity = self._verifier.verify(signed, time())
        call.access = _access(request, call.identity)


def _origin(request: Request) -> str:
    host = request.headers.get(b"host", b"localhost").decode("latin-1")
    if request.headers.get(b"x-forwarded-proto") == b"https":
        return f"https://{host}"
    return f"http://{host}"


def _access(request: Request, identity: Identity) -> Access:
    agent = request.header(b"user-agent")[:_LONGEST_AGENT]
    return Access(identity, request.peer, agent, request.headers.get(b"x-forwarded-proto") == b"https")
