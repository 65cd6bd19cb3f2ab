"""Whether a web page may have sent a request: without signatures to check, any page could call the broker."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from semel.broker.http import Request
from semel.sqs.hosts import Headers, can_be_rebound, is_browser_without_a_site, other_site

_KEPT: Final = 1_000
_SAY_WHENCE: Final = frozenset({b"sec-fetch-site", b"origin", b"referer"})  # few requests have one of them


class Origins:
    """`allowed_hosts`: names of this broker, allowed although they could be registered. `signed`: calls have a
    signature, which no page can make, so only admin requests are checked: a browser may send a password with them."""

    def __init__(self, allowed_hosts: Collection[str], *, signed: bool) -> None:
        self._allowed = frozenset(name.lower().removesuffix(".") for name in allowed_hosts)
        self._signed = signed
        self._good_hosts: set[bytes] = set()  # seen before: there are few, and each request has one

    def refusal(self, request: Request) -> str | None:
        """Why an admin request is refused, if it is."""
        if not _SAY_WHENCE.isdisjoint(request.headers):
            site = other_site(_headers(request))
            if site is not None:
                return f"requests that a page of another site sends are refused ({site})"
        return None if self._signed else self._refusal_of_host(request)

    def refusal_of_call(self, request: Request) -> str | None:
        """The same for a call of SQS, which may have an effect whatever its method."""
        headers = request.headers
        if self._signed or (
            # Nearly all requests: a known host, and no browser. The code below would allow these as well.
            headers.get(b"host") in self._good_hosts
            and _SAY_WHENCE.isdisjoint(headers)
            and not headers.get(b"user-agent", b"").startswith(b"Mozilla/")
        ):
            return None
        if is_browser_without_a_site(_headers(request)):
            return "a browser sent this and did not say for which page: use an SQS client, or curl"
        return self.refusal(request)

    def _refusal_of_host(self, request: Request) -> str | None:
        host = request.headers.get(b"host", b"")
        if host in self._good_hosts:
            return None
        text = request.header(b"host")
        if can_be_rebound(text, self._allowed):
            name = text.partition(":")[0] or text
            return (
                f"the host name {name!r} is not known to be this broker's, and a web page could have pointed it here: "
                f"start the broker with --allow-host {name}, or use its IP address or localhost"
            )
        if len(self._good_hosts) < _KEPT:
            self._good_hosts.add(host)
        return None


def _headers(request: Request) -> Headers:
    def header(name: str) -> str | None:
        value = request.headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    return header
