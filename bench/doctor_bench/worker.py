"""Examines logs in a process of its own: `python worker.py FOLDER`; prints one line of JSON.

The session is started before the clock; all the rest counts, compiling included, as nothing was run before.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from semel.doctor.behaviour import observe

from semel.doctor import recommendations
from semel.doctor.diagnosis import AT_START, SETTINGS
from semel.doctor.logs import spark_reader as logs
from semel.spark.spark_session import session


def main(folder: str, times: int) -> None:
    settings: dict[str, Any] = {**SETTINGS, **AT_START}
    spark = session("bench", cores=2, **settings)
    seconds, found = [], {}
    for _ in range(times):
        start = time.perf_counter()
        reading = logs.read(spark, [folder])
        seen = observe(reading.events, exact=reading.exact, timeouts=recommendations.worth_trying)
        seconds.append(time.perf_counter() - start)
        found = {one.queue: {caused.cause.value: caused.duplicates for caused in one.causes} for one in seen.behaviours}
    messages = {one.queue: one.messages for one in seen.behaviours}
    print(json.dumps({"seconds": seconds, "causes": found, "messages": messages}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
