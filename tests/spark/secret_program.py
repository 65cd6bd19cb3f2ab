"""Runs a stream with a secret in its options, with Spark's UI and event log, and prints all that Spark shows of it.

`python secret_program.py ENDPOINT FOLDER NAME=VALUE …`; the folder has a sub-folder `events`.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from semel.spark import session
from semel.spark.source.datasource import register

REST = ("environment", "sql?details=true&planDescription=true", "jobs", "stages?details=true")


def main() -> None:
    endpoint, folder, *pairs = sys.argv[1:]
    settings: dict[str, Any] = {
        "spark.ui.enabled": True,
        "spark.ui.port": 0,
        "spark.eventLog.enabled": True,
        "spark.eventLog.compress": False,
        "spark.eventLog.dir": f"file://{folder}/events",
    }
    spark = session("secrets", master="local[1]", **settings)
    register(spark)
    options = dict(pair.split("=", 1) for pair in pairs)
    reader = spark.readStream.format("sqs").option("queue", "orders").option("endpointUrl", endpoint)
    frame = reader.option("segments", f"{folder}/segments").options(**options).load()
    shown: dict[str, Any] = {"rows": 0}

    def batch(rows: Any, number: int) -> None:
        shown["rows"] += rows.count()
        shown["batch plan"] = rows._jdf.queryExecution().toString()

    writer = frame.writeStream.foreachBatch(batch).option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(200)
    explained = io.StringIO()
    with contextlib.redirect_stdout(explained):
        frame.explain(True)
        query.explain(True)
    shown["plans"] = explained.getvalue()
    shown["progress"] = [progress.json for progress in query.recentProgress]
    context = spark.sparkContext
    for path in REST:
        with urlopen(f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{path}", timeout=60) as answer:
            shown[path] = answer.read().decode()
    for page in ("SQL/", "StreamingQuery/", "environment/"):
        with urlopen(f"{context.uiWebUrl}/{page}", timeout=60) as answer:
            shown[page] = answer.read().decode()
    try:
        spark.read.format("sqs").options(**options).option("queue", "orders").option("receivers", "none").load().count()
    except Exception:  # noqa: BLE001  the test checks the text of any error
        shown["traceback"] = traceback.format_exc()
    spark.stop()
    shown["event log"] = "".join(file.read_text() for file in Path(folder, "events").rglob("*") if file.is_file())
    print(json.dumps(shown))


if __name__ == "__main__":
    main()
