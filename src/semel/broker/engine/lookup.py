"""Finds the queue that a call means, and checks whether the caller may use it.

Rules: the region is the caller's, unless the QueueUrl is in LocalStack's path form; the account is that of the QueueUrl
or the ARN, else the caller's. If signatures are checked, using a queue of another account needs its owner's permission.
If they are not, an account in a QueueUrl that this broker does not know means the caller's own.
"""

from __future__ import annotations

from typing import Any, Final

from semel.broker.engine.addresses import parse_queue_url
from semel.broker.engine.attributes import Arn
from semel.broker.engine.queue_policy import Verdict, context_of
from semel.broker.engine.store import Caller, Queue, Store
from semel.sqs.errors import ACCESS_DENIED, INVALID_ADDRESS, ServiceError, no_such_queue

_URLS_KEPT: Final = 10_000
# Actions that no policy can allow to another account.
OWNER_ONLY: Final = frozenset(
    {
        "AddPermission", "RemovePermission", "CreateQueue", "DeleteQueue", "ListQueues", "SetQueueAttributes",
        "TagQueue", "UntagQueue", "ListQueueTags", "StartMessageMoveTask", "ListMessageMoveTasks",
        "CancelMessageMoveTask",
    }
)  # fmt: skip


def find(store: Store, params: dict[str, Any], caller: Caller, action: str) -> Queue:
    """The queue that a QueueUrl names, for a caller who may do `action` with it."""
    queue = store.by_url.get((caller.region, caller.account, params["QueueUrl"]))
    if queue is None:
        queue = resolve(store, params["QueueUrl"], caller)
    if caller.access is not None:
        authorize(queue, caller, action)
    return queue


def resolve(store: Store, url: str, caller: Caller) -> Queue:
    """The queue that a QueueUrl names. The host does not matter: a broker has many names."""
    known = store.by_url.get((caller.region, caller.account, url))
    if known is not None:
        return known
    queue = store.queues.get(key_of(store, url, caller))
    if queue is None:
        raise no_such_queue()
    if len(store.by_url) < _URLS_KEPT:
        store.by_url[caller.region, caller.account, url] = queue
    return queue


def key_of(store: Store, url: str, caller: Caller) -> str:
    """The key of the queue that a QueueUrl names, whether there is such a queue or not."""
    address = parse_queue_url(url)
    if address is None:
        raise ServiceError(INVALID_ADDRESS, f"The address {url} is not valid for this endpoint.")
    own = store.own(caller, address.name)
    account = address.account
    if account is None or (caller.access is None and not store.knows_account(account)):
        account = own.account
    return store.key(Arn(address.region or own.region, account, own.name))


def find_by_name(store: Store, name: str, owner: str | None, caller: Caller, action: str) -> Queue:
    """The queue of this name in the caller's region, and in the account `owner` if that is given."""
    own = store.own(caller, name)
    queue = store.by_arn(own if owner is None else Arn(own.region, owner, name))
    if queue is None:
        raise no_such_queue()
    authorize(queue, caller, action)
    return queue


def find_by_arn(store: Store, text: str, caller: Caller, action: str) -> Queue | None:
    """The queue of this ARN; None if there is none in the caller's region."""
    arn = Arn.parse(text)
    if arn is None or arn.region != store.own(caller, arn.name).region:
        return None
    queue = store.by_arn(arn)
    if queue is not None:
        authorize(queue, caller, action)
    return queue


def url_of(queue: Queue, caller: Caller) -> str:
    return f"{caller.origin}/{queue.arn.account}/{queue.name}"


def authorize(queue: Queue, caller: Caller, action: str) -> None:
    """Raises AccessDenied if the caller may not do `action`. Everybody may if signatures are not checked.

    There are no identity policies: users of the queue's own account may do anything that its policy does not deny."""
    if caller.access is None:
        return
    verdict = Verdict.NO_MATCH
    identity = caller.access.identity
    if queue.policy is not None:
        context = context_of(caller.access, queue.arn.account, caller.now)
        verdict = queue.policy.verdict(identity, action, str(queue.arn), context)
    if verdict is Verdict.DENIED:
        raise _denied(queue, identity.arn, action, "with an explicit deny in a resource-based policy")
    if identity.account != queue.arn.account and (verdict is Verdict.NO_MATCH or action in OWNER_ONLY):
        reason = f"because no resource-based policy allows the sqs:{action.lower()} action"
        raise _denied(queue, identity.arn, action, reason)


def _denied(queue: Queue, user: str, action: str, reason: str) -> ServiceError:
    what = f"sqs:{action.lower()} on resource: {queue.arn}"
    return ServiceError(ACCESS_DENIED, f"User: {user} is not authorized to perform: {what} {reason}")
