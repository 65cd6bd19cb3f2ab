"""The ledger in a DynamoDB table: one conditional write for each key, and the writes of a batch in parallel.

The rule: this file sends writes and follows up on refused ones; `items` defines what they contain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

from semel.ledger.connect import options_from_url, without_password, yes_or_no
from semel.ledger.contract import (
    MAX_RESULT,
    RETENTION,
    Claim,
    ClaimRequest,
    ClaimResult,
    Clock,
    Completion,
    Conflict,
    Entry,
    Held,
    Ledger,
    LedgerError,
    LedgerUnavailable,
    OutboxStatus,
    Outgoing,
    Won,
    check_completions,
    check_lease,
    check_requests,
    check_result,
    check_retention,
    own_clock,
)
from semel.ledger.dynamodb import items
from semel.ledger.dynamodb.client import TableClient
from semel.ledger.dynamodb.items import ClaimWrite, Item, Moment, Update, milliseconds
from semel.ledger.dynamodb.outbox import Outbox
from semel.ledger.dynamodb.table import create_table, open_schema, warn_without_ttl
from semel.ledger.dynamodb.transaction import DynamoTransaction
from semel.ledger.rules import differs

Argument = TypeVar("Argument")
Result = TypeVar("Result")

_MOST_LOOKED_UP: Final = 100  # keys of one BatchGetItem
_TRIES: Final = 20  # for a key that others change each time


class DynamoLedger(Ledger):
    """A ledger in a DynamoDB table.

    A key is won by a conditional write, so exactly one of several concurrent claims of a key wins, and a write of a
    zombie is refused because of its fence. A claim takes one round trip if the key is new, or if it is held, done or in
    conflict; winning a known key takes two. DynamoDB has no clock that can be asked, so leases are judged by the clocks
    of the processes: keep these synchronised. The lease of another process counts as over only `clock_margin` seconds
    after its end. If a clock is further off, a key may be taken over too early; the fence makes that harmless to the
    ledger.

    The table's time to live (attribute `expires`) removes expired keys, up to a few days late. They count as absent
    from the moment they expire. `create`: create the table, with on-demand billing, its TTL and the outbox's index.
    `session`: a boto3 session; without it, region, profile and credentials are looked up as boto3 does, but AWS_REGION
    comes before AWS_DEFAULT_REGION. `timeout`: seconds for one attempt of a call; there are up to three attempts.
    `workers`: the number of threads that send the writes of a batch in parallel.

    `transaction` is one TransactWriteItems of at most 100 items: see DynamoTransaction.

    >>> from semel import App, DynamoLedger
    >>> app = App(DynamoLedger("orders-ledger", region="eu-west-1", create=True))  # doctest: +SKIP
    """

    transactional = True

    def __init__(
        self,
        table: str,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        session: Any = None,
        create: bool = False,
        retention: float = RETENTION,
        clock: Clock = own_clock,
        clock_margin: float = 0.5,
        timeout: float = 5.0,
        workers: int = 16,
    ) -> None:
        if not table:
            raise LedgerError("a DynamoDB ledger needs the name of its table: dynamodb://table?region=eu-west-1")
        check_retention(retention)
        self.retention = retention
        self.clock, self._margin = clock, milliseconds(clock_margin)
        self._client = TableClient(
            table, region=region, endpoint_url=endpoint_url, session=session, timeout=timeout, workers=workers
        )
        self._outbox = Outbox(self._client, self._now)
        try:
            if create:
                create_table(self._client)
            open_schema(self._client)
            if not create:
                warn_without_ttl(self._client)
        except BaseException:
            self._client.close()
            raise

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """dynamodb://table?region=eu-west-1&create=1; endpoint=http://… for an endpoint other than that of AWS."""
        rest, url_options = options_from_url(url, _OPTIONS)
        parts = urlsplit(rest)
        if parts.query:
            known = ", ".join(_OPTIONS)
            raise LedgerError(f"{without_password(url)!r}: there is no option {parts.query!r}; there are {known}")
        if "@" in parts.netloc:
            raise LedgerError(
                f"{without_password(url)!r}: the name of a table is expected before the ?; DynamoDB takes its "
                "credentials from the environment or from ~/.aws"
            )
        if "endpoint" in url_options:
            url_options["endpoint_url"] = url_options.pop("endpoint")
        return cls(parts.netloc, **(url_options | options))

    def claim(self, requests: Sequence[ClaimRequest], *, claimant: str, lease: float) -> list[ClaimResult]:
        check_requests(requests, claimant, lease)
        keys = [request.key for request in requests]
        return self._by_key(lambda requests: self._claim_key(requests, claimant, lease), keys, requests)

    def _claim_key(self, requests: Sequence[ClaimRequest], claimant: str, lease: float) -> list[ClaimResult]:
        """All requests of one call for the same key: once it is won, the others find it held."""
        results: list[ClaimResult] = []
        payload: str | None = None
        for request in requests:
            if payload is not None:
                results.append(Conflict(request.key) if differs(request, payload) else Held(request.key, lease))
                continue
            result, item = self._claim_once(request, claimant, lease)
            results.append(result)
            if isinstance(result, Won):
                payload = items.entry_of(request.key, item).payload
        return results

    def _claim_once(self, request: ClaimRequest, claimant: str, lease: float) -> tuple[ClaimResult, Item]:
        decision: ClaimResult | ClaimWrite = items.first_claim(request, self._moment(claimant, lease))
        item: Item = {}
        for _ in range(_TRIES):
            if not isinstance(decision, ClaimWrite):
                return decision, item
            made, item = self._client.put(decision.parameters())
            if made:
                return decision.won, decision.item
            if not item:  # some emulators of DynamoDB do not return it with the refusal
                (item,) = self._get([request.key]) or [{}]
            moment = self._moment(claimant, lease)
            decision = items.next_claim(item, request, moment) if item else items.first_claim(request, moment)
        raise self._restless(request.key)

    def extend(self, claims: Sequence[Claim], lease: float, *, timeout: float | None = None) -> list[bool]:
        check_lease(lease)
        deadline = None if timeout is None else time.monotonic() + timeout
        now, length, retention = self._now(), milliseconds(lease), milliseconds(self.retention)

        def write(claim: Claim) -> bool:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise LedgerUnavailable(f"leases could not be extended within {timeout:g} s; try again")
            return self._client.update(items.extension(claim, now, length, retention).parameters(), timeout=left)[0]

        return self._each_by_key(write, [claim.key for claim in claims], claims)

    def record(self, completions: Sequence[Completion]) -> list[bool]:
        check_completions(completions)
        now = self._now()

        def write(completion: Completion) -> bool:
            made, item = self._client.update(items.record(completion, now, self._kept(completion)).parameters())
            return made or (bool(item) and items.is_recorded(item, completion, now))

        return self._each_by_key(write, [completion.claim.key for completion in completions], completions)

    def release(self, claims: Sequence[Claim], *, tried: bool = True) -> list[bool]:
        now, retention = self._now(), milliseconds(self.retention)
        return self._updates([items.release(claim, now, retention, tried=tried) for claim in claims])

    def save_step(self, claim: Claim, name: str, value: bytes) -> bool:
        check_result(value, f"the step {name!r} of {claim.key!r}")
        now = self._now()
        update = items.note(claim, name, value, now, milliseconds(self.retention), MAX_RESULT)
        for _ in range(_TRIES):
            made, item = self._client.update(update.parameters())
            if made or not item or not items.is_held(item, claim, now):
                return made
            update, total = items.note_seen(claim, name, value, now, milliseconds(self.retention), item)
            if total > MAX_RESULT:
                raise LedgerError(
                    f"the steps of {claim.key!r} have {total} bytes together with {name!r}, the ledger keeps at most "
                    f"{MAX_RESULT}: store the results elsewhere and return their addresses"
                )
        raise self._restless(claim.key)

    def forget(self, keys: Sequence[str]) -> int:
        now, retention = self._now(), milliseconds(self.retention)
        return sum(self._updates([items.forgetting(key, now, retention) for key in dict.fromkeys(keys)]))

    def purge(self, limit: int = 1_000) -> int:  # noqa: ARG002
        """Does nothing: the table's time to live removes expired keys."""
        return 0

    def get(self, keys: Sequence[str]) -> list[Entry | None]:
        unique = list(dict.fromkeys(keys))
        groups = [unique[start : start + _MOST_LOOKED_UP] for start in range(0, len(unique), _MOST_LOOKED_UP)]
        by_key = {item["pk"]["S"]: item for group in self._client.side_by_side(self._get, groups) for item in group}
        now, entries = self._now(), []
        for key in keys:
            item = by_key.get(items.key_of(key)["pk"]["S"])
            entries.append(items.entry_of(key, item) if item and items.is_live(item, now) else None)
        return entries

    def _get(self, keys: Sequence[str]) -> list[Item]:
        fetched: list[Item] = []
        wanted = [items.key_of(key) for key in keys]
        for tried in range(_TRIES):
            page, wanted = self._client.get_many(wanted)
            fetched += page
            if not wanted:
                return fetched
            time.sleep(min(1.0, 0.02 * 2**tried))
        raise LedgerUnavailable(f"DynamoDB leaves keys of the table {self._client.table} unread; it is overloaded")

    @contextmanager
    def transaction(self) -> Iterator[DynamoTransaction]:
        self._client.check_usable()
        transaction = DynamoTransaction(self._client, self._outbox, self._now, self._kept)
        yield transaction
        transaction.commit()

    def take_outgoing(self, limit: int = 10, *, lease: float = 30.0) -> list[Outgoing]:
        return self._outbox.take(limit, milliseconds(lease))

    def refused_outgoing(self, ids: Sequence[str], *, error: str, wait: float) -> None:
        self._outbox.refused(ids, error, milliseconds(wait))

    def outbox_status(self, examples: int = 3) -> OutboxStatus:
        return self._outbox.status(examples)

    def count_outgoing(self) -> int:
        return self._outbox.count()

    def sent_outgoing(self, ids: Sequence[str]) -> None:
        self._outbox.drop(ids)

    def close(self) -> None:
        self._client.close()

    def _now(self) -> int:
        now = self.clock()
        return int((time.time() if now is None else now) * 1000)

    def _moment(self, claimant: str, lease: float) -> Moment:
        return Moment(self._now(), milliseconds(lease), milliseconds(self.retention), self._margin, claimant)

    def _kept(self, completion: Completion) -> int:
        return milliseconds(self.retention if completion.retention is None else completion.retention)

    def _updates(self, updates: Sequence[Update]) -> list[bool]:
        keys = [update.key for update in updates]
        return self._each_by_key(lambda update: self._client.update(update.parameters())[0], keys, updates)

    def _each_by_key(
        self, work: Callable[[Argument], Result], keys: Sequence[str], arguments: Sequence[Argument]
    ) -> list[Result]:
        return self._by_key(lambda group: list(map(work, group)), keys, arguments)

    def _by_key(
        self, work: Callable[[list[Argument]], list[Result]], keys: Sequence[str], arguments: Sequence[Argument]
    ) -> list[Result]:
        """Call `work` for different keys in parallel. Arguments with the same key go into one call, so that they do not
        race with each other."""
        places: dict[str, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(key, []).append(place)
        groups = [[arguments[place] for place in group] for group in places.values()]
        results = self._client.side_by_side(work, groups)
        in_place = {
            place: result
            for group, its_results in zip(places.values(), results, strict=True)
            for place, result in zip(group, its_results, strict=True)
        }
        return [in_place[place] for place in range(len(arguments))]

    def _restless(self, key: str) -> LedgerUnavailable:
        return LedgerUnavailable(f"{key!r} was changed by others at each of {_TRIES} tries; try again later")


_OPTIONS: Final[dict[str, Callable[[str], Any]]] = {
    "region": str,
    "endpoint": str,
    "create": yes_or_no,
    "retention": float,
    "clock_margin": float,
    "timeout": float,
    "workers": int,
}
