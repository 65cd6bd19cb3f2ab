"""A pipeline of an earlier version continues: its sealed batch is written once, and new messages follow."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from semel.broker import running
from semel.spark.pipeline.config_file import load
from semel.spark.pipeline.runner import run
from semel.sqs import Client
from upgrade.make import FOLDER, order
from upgrade.saved import DATA, VERSIONS, unpack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


def opened(archive: Path, folder: Path, url: str) -> Path:
    """The pipeline's file, in a folder with all that belongs to it."""
    unpack(archive, folder)
    for path in (folder / "orders.toml", folder / "checkpoint" / "pipeline.json"):
        text = path.read_text()
        assert FOLDER in text or "URL" in text
        path.write_text(text.replace(FOLDER, str(folder.resolve())).replace("URL", url))
    return folder / "orders.toml"


def rows(folder: Path) -> list[tuple[str, Decimal]]:
    table = pq.read_table(folder / "rows")
    return sorted(zip(table.column("id").to_pylist(), table.column("amount").to_pylist(), strict=True))


def written(*numbers: int) -> list[tuple[str, Decimal]]:
    return [(f"o{number}", Decimal(f"{number}.50")) for number in numbers]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_pipeline_of_an_earlier_version_goes_on_and_writes_what_it_had_sealed_once(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    with running() as broker, Client(broker.url) as client:
        queue = client.create_queue("orders")
        file = opened(DATA / version / "pipeline.tar.gz", tmp_path, broker.url)
        assert rows(tmp_path) == written(0, 1)

        report = run(load(file), exit_when_empty=True, show="none")
        assert report.clean, report.error
        assert rows(tmp_path) == written(0, 1, 2, 3)

        for body in (order(4), "no order"):
            queue.send(body)
        report = run(load(file), exit_when_empty=True, show="none")
        assert report.clean, report.error
        assert rows(tmp_path) == written(0, 1, 2, 3, 4)
        assert pq.read_table(tmp_path / "rejects").column("body").to_pylist() == ["no order"] * 2
