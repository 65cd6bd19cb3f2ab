"""Who makes a call, and what a policy may ask about the call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Identity:
    """A user of an account. `region` is the one that the call is for; `user_id` becomes a message's SenderId."""

    access_key: str
    account: str
    user_id: str
    arn: str
    region: str

    @property
    def name(self) -> str:
        """The user's name; empty if it is not known which user of the account it is."""
        return self.arn.partition(":user/")[2]


class Access(NamedTuple):
    """A call whose signature was checked, as policies see it."""

    identity: Identity
    source_ip: str = ""
    user_agent: str = ""
    secure: bool = False


def unknown_user(access_key: str, account: str, region: str) -> Identity:
    """A user of an account, as the caller claims."""
    return Identity(access_key, account, account, f"arn:aws:iam::{account}:root", region)
