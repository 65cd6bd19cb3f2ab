"""Clients for tests: they never sleep, but record how long they would have slept."""

from __future__ import annotations

from typing import Any

from semel.sqs import Client


class Naps(list[float]):
    """The pauses that a client would have made."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def client_for(url: str, **options: Any) -> Client:
    settings: dict[str, Any] = {
        "region": "us-east-1",
        "access_key": "test",
        "secret_key": "test",
        "sleep": Naps(),
        "chance": lambda: 0.5,
    }
    return Client(url, **(settings | options))


def naps_of(client: Client) -> list[float]:
    assert isinstance(client._sleep, Naps)
    return client._sleep
