"""The region, account and name of a queue in a QueueUrl. Pure.

Only LocalStack's path form names a region. A region in a host name is ignored; that of the credential scope counts.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

REGION: Final = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}\Z")
ACCOUNT: Final = re.compile(r"[0-9]{12}\Z")


class Address(NamedTuple):
    """None means the caller's own."""

    region: str | None
    account: str | None
    name: str


def parse_queue_url(url: str) -> Address | None:
    """What a QueueUrl names, or None if it names nothing.

    A bare name, or any host with /ACCOUNT/NAME, /NAME, /queue/NAME as in ElasticMQ, or /queue/REGION/ACCOUNT/NAME as in
    LocalStack."""
    *path, name = url.split("/")
    if not name or path == [""]:
        return None
    account = path[-1] if path and ACCOUNT.match(path[-1]) else None
    in_path = account is not None and len(path) >= 3 and path[-3] == "queue" and REGION.match(path[-2])
    return Address(path[-2] if in_path else None, account, name)
