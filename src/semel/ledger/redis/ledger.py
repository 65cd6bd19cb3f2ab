"""The ledger in Redis or Valkey: one Lua script for each operation, over all keys of the call.

The rule: this file only passes values to the scripts and back; every decision is made in `scripts`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self

import orjson

from semel.ledger.connect import options_from_url, yes_or_no
from semel.ledger.contract import (
    MAX_RESULT,
    RETENTION,
    Claim,
    ClaimRequest,
    ClaimResult,
    Clock,
    Completion,
    Conflict,
    Done,
    Entry,
    Held,
    Ledger,
    LedgerError,
    Status,
    Won,
    check_completions,
    check_lease,
    check_requests,
    check_result,
    check_retention,
    own_clock,
)
from semel.ledger.redis import scripts
from semel.ledger.redis.client import Client
from semel.ledger.redis.server_checks import check_server, open_schema

# A script holds up the whole server while it runs: more keys than this are split among several scripts.
_MOST_KEYS: Final = 500
_CODES: Final = {Status.FREE: "F", Status.CLAIMED: "C", Status.DONE: "D", Status.REJECTED: "R"}
_STATUSES: Final = {code.encode(): status for status, code in _CODES.items()}
_WON, _TAKEN_OVER, _DONE, _REJECTED, _HELD, _CONFLICT, _CONFLICT_RECORDED = range(1, 8)


class RedisLedger(Ledger):
    """A ledger in Redis or Valkey (5.0 or newer): a single server or, as an experiment, a cluster.

    As long as the server keeps its data, exactly one of several concurrent claims of a key wins, leases are judged by
    the server's own clock, and a write of a zombie is refused because of its fence. This is not exactly-once:
    replication is asynchronous, so a failover may lose a claim or a record that was acknowledged, and the key may then
    run again. `wait_replicas` makes that less likely, not impossible. Pass the key on as idempotency key in your
    handlers' calls to other systems or, if that is not enough, use a ledger with transactions.

    The server must not evict keys (maxmemory-policy noeviction) and should write an append-only file (appendonly yes).

    `prefix`: what all keys of this ledger start with. `timeout`: seconds for one call. `allow_eviction`: start even if
    the server evicts keys, which may then disappear at any time. `wait_replicas`: claims and records succeed only when
    this many replicas have confirmed them. `cluster`: whether the server is a cluster; None: find out. `connections`:
    the maximum number of connections to a node of a cluster; a single server needs only a few. `shards`: over how many
    slots of a cluster the keys are spread; it is stored with the ledger, and has no effect on a single server.

    >>> from semel import App, RedisLedger
    >>> app = App(RedisLedger("redis://localhost:6379/0", prefix="orders"))  # doctest: +SKIP
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "semel",
        retention: float = RETENTION,
        clock: Clock = own_clock,
        allow_eviction: bool = False,
        timeout: float = 5.0,
        connections: int = 64,
        wait_replicas: int = 0,
        cluster: bool | None = None,
        shards: int | None = None,
    ) -> None:
        if not prefix or "{" in prefix or "}" in prefix:
            raise LedgerError(f"the prefix {prefix!r} cannot be used: it must not be empty, nor contain a brace")
        check_retention(retention)
        self.retention = retention
        self.clock, self._prefix = clock, prefix
        address = url.replace("valkey://", "redis://", 1) if url.startswith("valkey://") else url
        self._client = Client(
            address, timeout=timeout, connections=connections, wait_replicas=wait_replicas, cluster=cluster
        )
        try:
            check_server(self._client, allow_eviction=allow_eviction)
            self._tags = tuple(f"{{{prefix}:{n}}}:" for n in range(open_schema(self._client, prefix, shards)))
        except BaseException:
            self._client.close()
            raise

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """redis://host:6379/0?prefix=orders&retention=3600. Options of RedisLedger may be part of the address."""
        rest, url_options = options_from_url(url, _OPTIONS)
        return cls(rest, **(url_options | options))

    def claim(self, requests: Sequence[ClaimRequest], *, claimant: str, lease: float) -> list[ClaimResult]:
        check_requests(requests, claimant, lease)
        keys = [request.key for request in requests]
        head = (_milliseconds(self.retention), _milliseconds(lease), claimant)
        words = [(request.payload, request.source) for request in requests]
        results: list[ClaimResult] = [_NONE] * len(requests)
        for places, answer in self._run(scripts.CLAIM, keys, head, words, durable=True):
            for place, result in zip(places, _results([keys[n] for n in places], answer, lease), strict=True):
                results[place] = result
        return results

    def extend(self, claims: Sequence[Claim], lease: float, *, timeout: float | None = None) -> list[bool]:
        check_lease(lease)
        return self._fenced(scripts.EXTEND, claims, _milliseconds(lease), timeout)

    def record(self, completions: Sequence[Completion]) -> list[bool]:
        check_completions(completions)
        words = []
        for it in completions:
            retention = self.retention if it.retention is None else it.retention
            words.append((it.claim.fence, _CODES[it.status], _milliseconds(retention)))
        keys, results = [it.claim.key for it in completions], [it.result for it in completions]
        return _flags(self._run(scripts.RECORD, keys, (), words, results, durable=True), len(keys))

    def release(self, claims: Sequence[Claim], *, tried: bool = True) -> list[bool]:
        return self._fenced(scripts.RELEASE, claims, 0 if tried else 1)

    def save_step(self, claim: Claim, name: str, value: bytes) -> bool:
        check_result(value, f"the step {name!r} of {claim.key!r}")
        words = (_milliseconds(self.retention), MAX_RESULT, claim.fence, name)
        [(_, answer)] = self._run(scripts.NOTE, [claim.key], (), [words], [value])
        if answer == b"2":
            raise LedgerError(
                f"the steps of {claim.key!r} have more than {MAX_RESULT} bytes together with {name!r}: "
                "store the results elsewhere and return their addresses"
            )
        return bool(answer == b"1")

    def forget(self, keys: Sequence[str]) -> int:
        names = list(dict.fromkeys(keys))
        answers = self._run(scripts.FORGET, names, (_milliseconds(self.retention),), [()] * len(names))
        return sum(answer.count(b"1") for _, answer in answers)

    def purge(self, limit: int = 1_000) -> int:  # noqa: ARG002
        """Does nothing: the server removes expired keys by itself."""
        return 0

    def get(self, keys: Sequence[str]) -> list[Entry | None]:
        entries: list[Entry | None] = [None] * len(keys)
        for places, answer in self._run(scripts.LOOK, keys, (), [()] * len(keys)):
            for place, row in zip(places, answer, strict=True):
                entries[place] = None if row is None else _entry(keys[place], row)
        return entries

    def close(self) -> None:
        self._client.close()

    def _fenced(
        self, script: scripts.Script, claims: Sequence[Claim], option: int, timeout: float | None = None
    ) -> list[bool]:
        head, words = (_milliseconds(self.retention), option), [(claim.fence,) for claim in claims]
        keys = [claim.key for claim in claims]
        return _flags(self._run(script, keys, head, words, timeout=timeout), len(claims))

    def _run(
        self,
        script: scripts.Script,
        keys: Sequence[str],
        head: tuple[Any, ...],
        words: Sequence[tuple[Any, ...]],
        blobs: Sequence[bytes] = (),
        *,
        durable: bool = False,
        timeout: float | None = None,
    ) -> Iterator[tuple[Sequence[int], Any]]:
        """Run a script over keys with their words, in as few calls as possible. Yields, for each call, the places of
        its keys in `keys`, and the answer."""
        tags = self._tags
        shards = [zlib.crc32(key.encode()) % len(tags) for key in keys]
        for places in self._groups(keys, shards):
            names = [tags[shards[n]] + keys[n] for n in places]
            text = [round((self.clock() or 0) * 1000), *head]
            for n in places:
                text += words[n]
            extra = [blobs[n] for n in places] if blobs else ()
            arguments = (orjson.dumps(text), *extra)
            yield places, self._client.run(script, names, arguments, durable=durable, timeout=timeout)

    def _groups(self, keys: Sequence[str], shards: Sequence[int]) -> Iterator[Sequence[int]]:
        groups: list[Sequence[int]] = [range(len(keys))] if keys else []
        if self._client.cluster:  # all keys of a script must be in one slot
            by_shard: dict[int, list[int]] = {}
            for place, shard in enumerate(shards):
                by_shard.setdefault(shard, []).append(place)
            groups = list(by_shard.values())
        for group in groups:
            # If a key occurs twice, the group stays together, so that one script decides both.
            if len(group) <= _MOST_KEYS or len({keys[n] for n in group}) < len(group):
                yield group
            else:
                yield from (group[start : start + _MOST_KEYS] for start in range(0, len(group), _MOST_KEYS))


_TRUE: Final = ord("1")
_NONE: Final = Held("", 0.0)


def _milliseconds(seconds: float) -> int:
    return max(1, math.ceil(seconds * 1000))


def _flags(answers: Iterator[tuple[Sequence[int], bytes]], size: int) -> list[bool]:
    flags = [False] * size
    for places, answer in answers:
        for place, flag in zip(places, answer, strict=True):
            flags[place] = flag == _TRUE
    return flags


def _results(keys: Sequence[str], answer: Sequence[bytes], lease: float) -> Iterator[ClaimResult]:
    numbers = [int(word) for word in answer[0].split()]
    at = 1
    for place, key in enumerate(keys):
        what, first, attempt, count = numbers[4 * place : 4 * place + 4]
        if what in (_WON, _TAKEN_OVER):
            steps = {answer[n].decode(): answer[n + 1] for n in range(at, at + 2 * count, 2)}
            at += 2 * count
            yield Won(Claim(key, first), lease, attempt, what == _TAKEN_OVER, steps)
        elif what in (_DONE, _REJECTED):
            yield Done(key, Status.DONE if what == _DONE else Status.REJECTED, answer[at])
            at += 1
        elif what == _HELD:
            yield Held(key, first / 1000)
        else:
            yield Conflict(key, recorded=what == _CONFLICT_RECORDED)


def _entry(key: str, row: Sequence[Any]) -> Entry:
    head, claimant, payload, source, result, steps = row
    status, fence, attempt, _, *times = head.split()
    lease_ends, first_seen, changed, expires = (int(word) / 1000 for word in times)
    return Entry(
        key=key,
        status=_STATUSES[status],
        fence=int(fence),
        attempt=int(attempt),
        claimant=claimant.decode(),
        lease_ends=lease_ends,
        payload=payload.decode(),
        source=source.decode(),
        result=result or b"",
        steps={steps[n].decode(): steps[n + 1] for n in range(0, len(steps), 2)},
        first_seen=first_seen,
        changed=changed,
        expires=expires,
    )


_OPTIONS: Final[dict[str, Callable[[str], Any]]] = {
    "prefix": str,
    "retention": float,
    "timeout": float,
    "connections": int,
    "wait_replicas": int,
    "shards": int,
    "allow_eviction": yes_or_no,
    "cluster": yes_or_no,
}
