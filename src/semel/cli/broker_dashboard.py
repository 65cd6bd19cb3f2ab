"""The dashboard beside a broker: a process of its own that starts once the broker listens, and ends with it.

The rules: a port that is not available is reported before anything starts; the token is passed where no list of
processes shows it; if the broker is killed, the pipe between them closes, and the dashboard ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Self
from urllib.parse import urlsplit

from semel.broker.auth import Credentials
from semel.broker.startup import Options
from semel.cli.command import UsageError
from semel.cli.dashboard import check_installed
from semel.dashboard.settings import Settings
from semel.errors import StartError
from semel.ports import listen

_PATIENCE: Final = 10.0  # seconds for it to end
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


class Dashboard:
    """Listens on the port from the start; the process runs inside `with beside(…)`."""

    def __init__(self, options: Options, port: int, token: str | None) -> None:
        try:
            Settings(host=options.host, port=port, token=token).check()
        except StartError as error:  # the same options have other names here
            raise UsageError(
                str(error).replace("--port", "--dashboard-port").replace("--token", "--dashboard-token")
            ) from None
        check_installed()
        self._options, self._token = options, token
        self._listener = listen(options.host, port, option="--dashboard-port")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._listener.close()

    @contextmanager
    def beside(self, url: str) -> Iterator[None]:
        number = self._listener.fileno()
        command = [sys.executable, "-m", "semel.cli", "dashboard", "--endpoint-url", _reachable(url)]
        command += ["--region", self._options.region, "--host", self._options.host, "--inherited", str(number)]
        process = subprocess.Popen(
            [*command, "--port", str(self._listener.getsockname()[1])],
            stdin=subprocess.PIPE,
            env=self._environment(),
            pass_fds=(number,),
        )
        self._listener.close()
        try:
            yield
        finally:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _environment(self) -> dict[str, str]:
        """The environment of this process, with credentials that the broker accepts."""
        environment = {name: value for name, value in os.environ.items() if name != "SEMEL_TOKEN"}
        if self._token is not None:
            environment["SEMEL_TOKEN"] = self._token
        if self._options.credentials is None:
            # The broker does not check signatures, so any credentials will do.
            environment |= {"AWS_ACCESS_KEY_ID": "semel", "AWS_SECRET_ACCESS_KEY": "semel"}
        else:
            access_key, secret = Credentials.load(self._options.credentials).operator(self._options.account)
            environment |= {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret}
        environment.pop("AWS_PROFILE", None)
        environment.pop("AWS_SESSION_TOKEN", None)
        return environment


def _reachable(url: str) -> str:
    """The address for the dashboard: a broker that listens everywhere is reached on the loopback address."""
    parts = urlsplit(url)
    return f"http://{_EVERYWHERE[parts.hostname]}:{parts.port}" if parts.hostname in _EVERYWHERE else url
