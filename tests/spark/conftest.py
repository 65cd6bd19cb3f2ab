"""All tests of Spark have credentials for Semel's broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from spark.intake import Intake


@pytest.fixture(scope="session", autouse=True)
def spark_credentials(credentials: None) -> None: ...


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Intake]:
    from spark.intake import intake

    with intake(tmp_path / "log") as place:
        yield place
