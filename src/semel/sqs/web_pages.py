"""Requests that a web page made a browser send: to be refused by servers that ask for no password.

Such a server trusts whoever can reach it. A browser on the same machine can, and it sends what any page tells it to.
The rules that keep pages out:
1. Browsers say which site a request comes from (Sec-Fetch-Site, else Origin or Referer): it must be the server's own.
   Where they leave all of it out, which they do for plain HTTP to another machine, nothing that has an effect is done.
2. The Host must be a name that nobody can register: a page whose own name was pointed here afterwards (DNS rebinding)
   looks like the server's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final
from urllib.parse import urlsplit

from semel.sqs.hosts import is_address

# The value of a header by its name in lower case, or None.
Headers = Callable[[str], str | None]

_OWN: Final = frozenset({"none", "same-origin"})  # "none": typed in by the user
# Top-level names that public DNS does not have and never will (RFC 6761, RFC 6762, ICANN on .internal).
_PRIVATE: Final = ("localhost", "local", "internal", "test")


def is_from_page(header: Headers) -> bool:
    """Whether a page of any site sent this, as far as browsers say so: for servers that have no pages themselves."""
    return header("origin") is not None or header("sec-fetch-site") not in (None, "none")


def other_site(header: Headers, own: Collection[str] = ()) -> str | None:
    """The site whose page sent this, as far as it is known, if that is not the server's own. `own`: names by which
    browsers know the server, other than its Host, because a proxy is in between."""
    site = header("sec-fetch-site")
    if site is not None and site not in _OWN:
        return header("origin") or header("referer") or "another site"
    for source in (header("origin"), header("referer")):
        if source is not None and not _is_own(source, header("host") or "", own):
            return source
    return None


def is_browser_without_a_site(header: Headers) -> bool:
    """Whether a browser may have sent this and did not say from where. All browsers call themselves Mozilla, and so do
    some clients, such as Celery's; those sign their requests, which a page can make no browser do unasked."""
    if not (header("user-agent") or "").startswith("Mozilla/"):
        return False
    if (header("authorization") or "").startswith("AWS4-HMAC-SHA256 "):
        return False
    return all(header(name) is None for name in ("sec-fetch-site", "origin", "referer"))


def can_be_rebound(host: str, allowed: Collection[str] = ()) -> bool:
    """Whether the Host header has a name that somebody could register and point here. Names without a dot cannot be
    registered, nor those below some top-level names; `allowed` are others that are known to be the server's own."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return True
    return not ("." not in name or is_address(name) or name.rpartition(".")[2] in _PRIVATE or name in allowed)


def _is_own(url: str, host: str, names: Collection[str]) -> bool:
    try:
        parts = urlsplit(url)
        return parts.netloc == host or parts.hostname in names
    except ValueError:
        return False
