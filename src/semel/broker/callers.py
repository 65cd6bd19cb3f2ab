"""Who calls if signatures are not checked: the region and account that the caller claims.

The region is that of the credential scope; a name that cannot be an AWS region means the broker's own. An access key of
exactly 12 digits is the account, as in LocalStack.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs

from semel.broker.engine.addresses import ACCOUNT, REGION
from semel.broker.engine.identity import Identity, unknown_user
from semel.broker.http import Request

_KEPT: Final = 1_000


class Callers:
    """Identities of unchecked requests. There are few, and each request has one, so they are cached by their header."""

    def __init__(self, region: str, account: str) -> None:
        self._region, self._account = region, account
        self.nobody = unknown_user("", account, region)
        self._known: dict[bytes, Identity] = {}

    def of(self, request: Request) -> Identity:
        header = request.headers.get(b"authorization")
        if header is None:
            return self._presigned(request.target) if "X-Amz-Credential=" in request.target else self.nobody
        # After the first comma, the header is different in each request.
        start = header[: header.find(b",") + 1]
        known = self._known.get(start)
        if known is not None:
            return known
        credential = header.partition(b"Credential=")[2].replace(b",", b" ").partition(b" ")[0]
        identity = self._identity(credential.decode("latin-1"))
        if b"Credential=" in start:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[start] = identity
        return identity

    def _presigned(self, target: str) -> Identity:
        credentials = parse_qs(target.partition("?")[2]).get("X-Amz-Credential", [""])
        return self._identity(credentials[-1])

    def _identity(self, credential: str) -> Identity:
        """From KEY/DATE/REGION/SERVICE/aws4_request, or as much of it as there is."""
        access_key, *scope = credential.rsplit("/", 4)
        region = scope[1] if len(scope) == 4 and REGION.match(scope[1]) else self._region
        account = access_key if ACCOUNT.match(access_key) else self._account
        return unknown_user(access_key, account, region)
