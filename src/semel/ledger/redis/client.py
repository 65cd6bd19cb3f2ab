"""The client for a Redis or Valkey server or cluster: runs scripts, retries once, and turns driver errors into ours.

The rule: no exception of the driver gets past `translated`, and a call is sent again only if it may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import redis.exceptions as driver
from redis import Redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from semel.ledger.contract import LedgerError, LedgerUnavailable
from semel.ledger.forks import OwningProcess
from semel.ledger.redis.script_runner import ScriptRunner
from semel.ledger.redis.scripts import Script

Answer = TypeVar("Answer")

# Errors of a server that cannot serve just now. They start its answer or, from inside a script, come later in it.
_PASSING: Final = (
    "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "BUSY ", "MISCONF", "OOM ",
    "UNKILLABLE", "max number of clients",
)  # fmt: skip
_ADVICE: Final = {
    "OOM ": "it is full; give it more memory (maxmemory), and leave maxmemory-policy at noeviction",
    "MISCONF": "it cannot write to its disk; see its log",
    "READONLY": "it is a replica; use the address of the primary",
    "LOADING": "it is reading its data from disk; it answers when that is done",
}


class Client:
    """Connections to one server, or to every node of a cluster. Thread-safe."""

    def __init__(self, url: str, *, timeout: float, connections: int, wait_replicas: int, cluster: bool | None) -> None:
        self.where = _without_password(url)
        self._process = OwningProcess(f"the ledger in Redis at {self.where}")
        self._runner: ScriptRunner | None = None  # of a single server
        self.cluster = False
        options: dict[str, Any] = {
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "socket_keepalive": True,
            "decode_responses": False,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
        }
        with self.translated():
            self.server: Any = Redis.from_url(url, max_connections=connections, **options)
        try:
            self.cluster = self._is_cluster() if cluster is None else cluster
            if self.cluster:
                if wait_replicas:
                    raise LedgerError(f"wait_replicas does not work on a cluster, which {self.where} is; leave it out")
                self.server.close()
                del options["retry"]
                with self.translated():
                    self.server = RedisCluster.from_url(url, max_connections=connections, **options)
            else:
                pool = self.server.connection_pool
                self._runner = ScriptRunner(pool, wait_replicas=wait_replicas, timeout=timeout)
        except BaseException:
            self.server.close()
            raise

    def _is_cluster(self) -> bool:
        try:
            about = self.command("INFO", "cluster")
        except LedgerUnavailable:
            raise
        except LedgerError:  # INFO is not allowed: assume a single server
            return False
        return bool(about.get("cluster_enabled"))

    def command(self, *words: Any) -> Any:
        """Run one plain command that may be repeated."""
        return self._twice(lambda: self.server.execute_command(*words))

    def any_node(self, *words: Any) -> Any:
        """A command that belongs to no key: any one node of a cluster may answer it."""
        options = {"target_nodes": RedisCluster.RANDOM} if self.cluster else {}
        answer = self._twice(lambda: self.server.execute_command(*words, **options))
        return next(iter(answer.values())) if self.cluster and len(words) > 2 and isinstance(answer, dict) else answer

    def run(
        self,
        script: Script,
        keys: Sequence[str],
        arguments: Sequence[bytes],
        *,
        durable: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Run one script. `durable`: return only when as many replicas have confirmed it as `wait_replicas` asks for.
        `timeout`: of this call; without effect on a cluster."""
        self._process.check()
        with self.translated():
            if self._runner is not None:
                return self._runner.run(script, keys, arguments, durable=durable, timeout=timeout)
            return self._on_cluster(script, (len(keys), *keys, *arguments))

    def _on_cluster(self, script: Script, words: tuple[Any, ...]) -> Any:
        try:
            return self.server.execute_command("EVALSHA", script.digest, *words)
        except driver.NoScriptError:  # a new node, or one that was restarted or whose scripts were flushed
            return self.server.execute_command("EVAL", script.text, *words)

    def _twice(self, call: Callable[[], Answer]) -> Answer:
        """A broken connection may be an old one that broke while idle: try once more, on a new one."""
        with self.translated():
            try:
                return call()
            except (driver.ConnectionError, driver.TimeoutError, driver.ReadOnlyError) as error:
                if isinstance(error, driver.AuthenticationError | driver.AuthorizationError | driver.BusyLoadingError):
                    raise
                if isinstance(error, driver.TimeoutError):
                    raise  # its time is up
                if not self.cluster:
                    self.server.connection_pool.disconnect(inuse_connections=False)
                return call()

    @contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except LedgerUnavailable as error:
            raise LedgerUnavailable(f"Redis at {self.where}: {error}") from error.__cause__
        except (driver.AuthenticationError, driver.AuthorizationError, driver.NoPermissionError) as error:
            raise LedgerError(
                f"Redis at {self.where} does not let us in: {error}; check the user and password in the address, and "
                "that it may use EVALSHA, EVAL, TIME, PEXPIRE and the hash commands on the ledger's keys"
            ) from error
        except (driver.ConnectionError, driver.TimeoutError, driver.ClusterError, OSError) as error:
            raise LedgerUnavailable(f"Redis at {self.where} did not answer: {error}{_advice(error)}") from error
        except (driver.RedisError, driver.RedisClusterException) as error:
            if any(word in str(error) for word in _PASSING) or isinstance(error, _RETRYABLE):
                raise LedgerUnavailable(f"Redis at {self.where} cannot serve: {error}{_advice(error)}") from error
            raise LedgerError(f"Redis at {self.where} refused a command of the ledger: {error}") from error
        except ValueError as error:  # an address or option that the driver cannot read
            raise LedgerError(f"{self.where} is no address of a Redis server: {error}") from error

    def close(self) -> None:
        if not self._process.is_this():
            return
        if self._runner is not None:
            self._runner.close()
        self.server.close()


_RETRYABLE: Final = (
    driver.OutOfMemoryError,
    driver.ReadOnlyError,
    driver.TryAgainError,
    driver.AskError,
    driver.RedisClusterException,
)


def _advice(error: Exception) -> str:
    return next((f" ({advice})" for word, advice in _ADVICE.items() if word in str(error)), "")


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    address = rest.partition("?")[0]
    return f"{scheme}://{address.rpartition('@')[2]}"
