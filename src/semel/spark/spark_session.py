"""Makes a SparkSession for Semel: finds a Java, keeps the terminal quiet, and tunes Spark for small micro-batches.

The rules: a setting that the caller passes in `conf` wins over every setting below. A JVM that was started by something
else (spark-submit, a notebook) keeps its own master, log and memory. An existing session keeps all its settings.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import WeakSet

from semel.errors import SemelError
from semel.extras import require
from semel.spark import java
from semel.spark.interpreter import running_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log: Final = logging.getLogger("semel.spark")
OLDEST_PYSPARK: Final = (4, 2)  # the first in which Python sources can limit the size of a batch
LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
CLUSTERS: Final = ("spark://", "k8s://", "yarn", "local-cluster[")
CLUSTER_SHUFFLE_PARTITIONS: Final = 8
TASK_TRIES: Final = 4  # as on a cluster; Spark's own "local[2]" gives up at the first failure
JAVA_STOP_SECONDS: Final = 3.0
MIN_HEAP_MB: Final = 1024
MAX_HEAP_MB: Final = 4096

# If a query is stopped within a batch, Spark searches the error's text with a regular expression that recurses once per
# character. With Java's default stack of 1 MB that kills the stream's thread and prints a thousand lines.
STACK: Final = "-Xss16m"

ROCKSDB: Final = "spark.sql.streaming.stateStore.rocksdb"
# For queries that Semel runs itself: these override the user's settings.
_REQUIRED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",  # a replayed batch must be cut into the same partitions
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
# For every session made here, even if something else has started Spark.
_SESSION: Final = _REQUIRED | {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    f"{ROCKSDB}.changelogCheckpointing.enabled": "true",
    f"{ROCKSDB}.boundedMemoryUsage": "true",
    f"{ROCKSDB}.trackTotalNumberOfRows": "false",  # counting rows costs a look-up for each one written
}
# For a Spark that is started here: they cannot be changed afterwards.
_START: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
}
# Without its native library, Hadoop starts one process to set a file's permissions and another to see whether it is a
# link: 30 in a micro-batch, more than a third of its time. The raw file system in Hadoop's older interface starts 3.
# It also writes no checksum files: these are renamed after the file itself, and a crash in between made it unreadable.
LOCAL_FILES: Final = {
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


class SparkError(SemelError):
    """PySpark is missing or too old, or Spark does not start. Install `semel[spark]`, or remove the cause in the
    text."""


def session(
    name: str, *, master: str | None = None, cores: int | None = None, **conf: str | int | float | bool
) -> SparkSession:
    """A SparkSession with Semel's settings: of a new Spark, or a new session of the Spark that runs in this process.

    `master`: by default this machine. `cores`: how many tasks run at once. Pass Spark's own settings, with dots in
    their names, as `**{"spark.driver.memory": "4g"}`; a warning names those that a running Spark cannot change. Spark's
    log is not printed unless the environment variable SEMEL_SPARK_LOG is `warn` or `info`. A task is tried up to 4
    times, also on one machine.

    >>> from semel.spark import session
    >>> spark = session("orders", cores=2)  # doctest: +SKIP
    """
    check_pyspark()
    chosen = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in conf.items()}
    master = chosen.pop("spark.master", master)
    placed = _placed(master, cores)
    if running_spark() is None:
        return _started(name, placed, chosen)
    if master is not None:
        chosen["spark.master"] = placed["spark.master"]
    return _beside_others(cores, chosen)


def query_settings(shuffle_partitions: int | None = None) -> dict[str, str]:
    """Settings to pass to `session` as `conf` if Semel runs a query in it: those that exactly once depends on, and a
    time limit for stopping the query. `shuffle_partitions`: by default the number that `session` sets."""
    width = {} if shuffle_partitions is None else {"spark.sql.shuffle.partitions": str(shuffle_partitions)}
    return _REQUIRED | width | {"spark.sql.streaming.stopTimeout": "30s"}


def _beside_others(cores: int | None, chosen: dict[str, str]) -> SparkSession:
    """A new session of the running Spark. Its other sessions keep their settings."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import SparkSession

    spark = (SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()).newSession()
    context = spark.sparkContext
    is_local = (context.master or "").startswith("local[")
    width = cores or (context.defaultParallelism if is_local else CLUSTER_SHUFFLE_PARTITIONS)
    fixed = []
    wanted = _SESSION | {"spark.sql.shuffle.partitions": str(width)} | (LOCAL_FILES if is_local else {}) | chosen
    for key, value in wanted.items():
        try:
            if key.startswith("spark.sql."):
                spark.conf.set(key, value)
                continue
        except AnalysisException:  # a setting that applies to all sessions
            pass
        if context.getConf().get(key) != value:
            fixed.append(key)
    if fixed:
        log.warning(
            "Spark was started before Semel, and keeps its own %s. Start Spark with semel.spark.session(...), or with "
            "these settings, to have them as Semel would set them",
            ", ".join(sorted(fixed)),
        )
    _silence_accumulators(spark)
    return spark


def _started(name: str, placed: dict[str, str], chosen: dict[str, str]) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark import SparkContext, java_gateway
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    settings = _START | _SESSION | placed | chosen
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started the JVM
        options = chosen.get("spark.driver.extraJavaOptions", "")
        java.use()
        settings["spark.driver.extraJavaOptions"] = _java_options(options)
    _choose_python(settings.get("spark.master", ""))
    pandas = threading.Thread(target=_import_quietly, daemon=True)  # takes about as long as starting Java
    pandas.start()
    java_gateway.Popen = _JavaProcess  # type: ignore[attr-defined]
    _silence_py4j()
    try:
        spark = SparkSession.builder.appName(name).config(map=dict(settings)).getOrCreate()
    except (Py4JError, PySparkException) as error:
        where = settings.get("spark.master", "the master of spark-submit")
        raise SparkError(f"Spark does not start on {where}: {_reason(error)}") from error
    except KeyboardInterrupt:
        if SparkContext._gateway is None:  # PySpark was still waiting for Java, and keeps no reference to it
            end_java()
        raise
    pandas.join()
    _silence_accumulators(spark)
    return spark


class _JavaProcess(Popen[Any]):
    """The process in which PySpark launches Java. It is remembered before it starts, for `end_java`."""

    last: ClassVar[_JavaProcess | None] = None
    abandoned: ClassVar[WeakSet[threading.Thread]] = WeakSet()  # threads that may not start one any more
    lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        with self.lock:
            if threading.current_thread() in self.abandoned:
                raise SparkError("the start of Spark was abandoned")
            _JavaProcess.last = self
            with _interrupts_postponed():
                super().__init__(*arguments, **options)


@contextmanager
def _interrupts_postponed() -> Iterator[None]:
    """Delays Ctrl-C until after the block: Python drops a KeyboardInterrupt that is raised while it forks."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *which: came.append(which))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came and callable(before):
            before(*came[0])


def abandon_start(thread: threading.Thread) -> None:
    """End the Java that a thread is starting. If the thread has not started it yet, it never will."""
    with _JavaProcess.lock:
        _JavaProcess.abandoned.add(thread)
    end_java()


def end_java() -> None:
    """End the Java that this process has started, whatever it is doing: for a command that was interrupted.

    `SparkSession.stop` would wait for calls under way, and there is no session yet while Spark starts.
    """
    process = _JavaProcess.last
    if process is None or getattr(process, "pid", None) is None or process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(JAVA_STOP_SECONDS)  # meanwhile it removes its temporary folders
    except TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _silence_py4j() -> None:
    """Suppress the stack traces that py4j logs, some to the root logger: it also raises each of these errors."""
    logging.getLogger().addFilter(_is_not_py4j)
    if (logger := logging.getLogger("py4j")).level == logging.NOTSET:  # else somebody wants to see them
        logger.setLevel(logging.CRITICAL)


def _silence_accumulators(spark: SparkSession) -> None:
    """Suppress the stack trace that PySpark's accumulator server prints when Java ends first."""
    if (server := getattr(spark.sparkContext, "_accumulatorServer", None)) is not None:
        server.handle_error = lambda *_: None


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def check_pyspark() -> None:
    # Spark's mapInArrow imports pandas, if only to check its version
    require("Spark", "pyspark", "pyarrow", "pandas", extra="spark")
    import pyspark

    if tuple(map(int, pyspark.__version__.split(".")[:2])) < OLDEST_PYSPARK:
        oldest = ".".join(map(str, OLDEST_PYSPARK))
        raise SparkError(
            f"this needs PySpark {oldest} or newer, and here is {pyspark.__version__}: "
            "pip install --upgrade 'semel[spark]'"
        )


def _placed(master: str | None, cores: int | None) -> dict[str, str]:
    """Where a new Spark runs, and the settings that follow from that."""
    if master is None and "PYSPARK_GATEWAY_PORT" in os.environ:
        return {}
    if master is not None and master.startswith(CLUSTERS):
        limit = {"spark.cores.max": str(cores)} if cores else {}
        partitions = str(cores or CLUSTER_SHUFFLE_PARTITIONS)
        return limit | {"spark.master": master, "spark.sql.shuffle.partitions": partitions}
    tasks, tries = _local(master or "local[*]")
    tasks = cores or tasks
    return LOCAL_FILES | {
        "spark.master": f"local[{tasks},{tries}]",
        "spark.sql.shuffle.partitions": str(tasks),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": f"{_heap_mb()}m",
    }


def _local(master: str) -> tuple[int, int]:
    """Of a local master, how many tasks run at once and how often each is tried: "local", "local[4]", "local[*,1]"."""
    named = re.fullmatch(r"local(?:\[([1-9]\d*|\*)(?:,([1-9]\d*))?\])?", master.replace(" ", ""))
    if named is None:
        raise SparkError(
            f"no such master: {master!r}; there are local, local[N], local[*], spark://…, k8s://… and yarn"
        )
    tries = int(named[2] or TASK_TRIES)
    if named[1] == "*":
        return usable_cores(), tries
    return int(named[1] or 1), tries


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _heap_mb() -> int:
    """A quarter of the memory that this process may use; the rest is for Python's workers, RocksDB and the system."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no container, or one with no limit ("max")
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(max(memory // 4 // 2**20, MIN_HEAP_MB), MAX_HEAP_MB)


def _java_options(chosen: str) -> str:
    """Our Java options, then the user's. If the user has a log configuration, ours is left out."""
    folder = os.environ.get("SPARK_CONF_DIR")
    has_own_log = "log4j" in chosen or (folder and Path(folder, LOG_SETTINGS.name).exists())
    quiet = [] if has_own_log else [f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"]
    return " ".join([STACK, *quiet, chosen]).strip()


def _choose_python(master: str) -> None:
    """Workers must run this Python. On a cluster it may be at another path, which the user sets in PYSPARK_PYTHON."""
    if master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _import_quietly() -> None:
    """Make PySpark check pandas now, and ignore its warning about pandas 3: Semel does not use that part of PySpark."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pyspark.testing.utils  # noqa: F401


def _reason(error: Exception) -> str:
    """The one line of a Java stack trace that says what happened: the innermost cause, or else the first line."""
    if "JAVA_GATEWAY_EXITED" in str(error):
        return "its Java ended at once, and has said why above"
    if "stopped SparkContext" in str(error):
        return "no cluster answers there"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    thrown = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return (causes[-1:] or thrown or lines or [type(error).__name__])[0]
