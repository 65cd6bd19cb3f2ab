"""One server of each kind, shared by all tests that do not harm it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dashboard.serving import Shop, Site, shop
from intruders import targets
from intruders.targets import Target, Worker


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop(tmp_path_factory.mktemp("state")) as place:
        yield place


@pytest.fixture(scope="session")
def site(place: Shop) -> Iterator[Site]:
    """A dashboard without a token."""
    with place.dashboard() as site:
        yield site


@pytest.fixture(scope="session")
def worker() -> Worker:
    return Worker()


@pytest.fixture(scope="session")
def servers(place: Shop, site: Site, worker: Worker) -> Iterator[dict[str, Target]]:
    """The servers by name: broker, dashboard, worker. All of them must still answer after the last test."""
    with targets.endpoint(worker) as endpoint:
        servers = {
            "broker": targets.target("broker", place.broker.url),
            "dashboard": targets.target("dashboard", site.url),
            "worker": endpoint,
        }
        yield servers
        for server in servers.values():
            assert server.is_well(), server
