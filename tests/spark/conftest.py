"""All tests of Spark have credentials for the broker in the box."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def spark_credentials(credentials: None) -> None: ...
