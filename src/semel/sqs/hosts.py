"""Which hosts are this machine, and which requests a web page made a browser send.

A server on this machine trusts every client on it. A browser is one of them, and it sends requests for any page that
the user opens. Two checks keep foreign pages out of the broker, the workers' control endpoint and the dashboard:
1. The site: browsers name the site that a request comes from, in Sec-Fetch-Site if the request goes over HTTPS or to
   this machine, otherwise in Origin or Referer. It must be the server's own.
2. The Host header must be a name that nobody can register. Otherwise a page could point its own name at this machine
   (DNS rebinding), and the browser would treat this server as the page's own site.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection
from typing import Final
from urllib.parse import urlsplit

# The value of a header by its name in lower case, or None.
Headers = Callable[[str], str | None]

_OWN: Final = frozenset({"none", "same-origin"})  # "none": typed in by the user
# Top-level names that public DNS does not have and never will (RFC 6761, RFC 6762, ICANN on .internal).
_PRIVATE: Final = ("localhost", "local", "internal", "test")


# Hosts.


def is_loopback(host: str) -> bool:
    """Whether it is in 127.0.0.0/8, or is ::1, localhost or a name that ends in .localhost. Names are not resolved."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.lower().removesuffix(".")
        return name == "localhost" or name.endswith(".localhost")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def is_address(host: str) -> bool:
    """Whether `host` is an IP address (without brackets) and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def can_be_rebound(host: str, allowed: Collection[str] = ()) -> bool:
    """Whether the Host header has a name that somebody could register and point here. Names without a dot, and
    names below some top-level domains, cannot be registered. `allowed` are other names of this server."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return True
    return not ("." not in name or is_address(name) or name.rpartition(".")[2] in _PRIVATE or name in allowed)


# Sites.


def is_from_page(header: Headers) -> bool:
    """Whether a web page sent this, as far as the browser's headers tell. For servers without pages of their own."""
    return header("origin") is not None or header("sec-fetch-site") not in (None, "none")


def other_site(header: Headers, own: Collection[str] = ()) -> str | None:
    """The site whose page sent this, if it is known and is not the server's own. `own`: other names than the
    Host by which browsers know the server, if there is a proxy in between."""
    site = header("sec-fetch-site")
    if site is not None and site not in _OWN:
        return header("origin") or header("referer") or "another site"
    for source in (header("origin"), header("referer")):
        if source is not None and not _is_own(source, header("host") or "", own):
            return source
    return None


def is_link(header: Headers) -> bool:
    """Whether a browser opens this as a page of its own, as it does for a link: it is not a frame, an image, a script
    or a prefetch. The browser shows the answer to the user, and the page with the link cannot read it."""
    return (
        header("sec-fetch-mode") == "navigate"
        and header("sec-fetch-dest") == "document"
        and header("sec-purpose") is None
    )


def is_browser_without_a_site(header: Headers) -> bool:
    """Whether a browser may have sent this without naming a site. All browsers call themselves Mozilla, and so do some
    clients, such as Celery's. Those clients sign their requests, which a page of another site cannot make a browser do
    without a CORS preflight."""
    if not (header("user-agent") or "").startswith("Mozilla/"):
        return False
    if (header("authorization") or "").startswith("AWS4-HMAC-SHA256 "):
        return False
    return says_no_site(header)


def says_no_site(header: Headers) -> bool:
    return all(header(name) is None for name in ("sec-fetch-site", "origin", "referer"))


def _is_own(url: str, host: str, names: Collection[str]) -> bool:
    try:
        parts = urlsplit(url)
        return parts.netloc == host or parts.hostname in names
    except ValueError:
        return False
