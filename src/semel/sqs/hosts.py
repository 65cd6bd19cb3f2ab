"""Which hosts are this machine itself, and which are addresses."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """127.0.0.0/8, ::1, localhost and names that end in .localhost. No name is looked up."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.lower().removesuffix(".")
        return name == "localhost" or name.endswith(".localhost")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def is_address(host: str) -> bool:
    """Whether it is an IP address, without brackets, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
