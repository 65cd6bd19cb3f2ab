"""Finds an app by its name, `module:attribute`, and applies the options of `semel run` to it.

The rule: anything wrong with the name, the module or the queues is an error of one line, before anything runs.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from semel.consumer.app import App
from semel.errors import SemelError


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `semel run`. None means not given; for `queues`, the queues of all handlers."""

    app: str
    queues: tuple[str, ...] | None = None
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    ledger: str | None = None
    processes: int = 1
    exit_when_empty: bool = False
    drain: str | float | None = None
    create_dlq: bool = False
    health: str | None = None
    control_token: str | None = field(default=None, repr=False)
    attempt_log: str | None = None
    handler_options: Mapping[str, Any] = field(default_factory=dict)  # see semel.consumer.settings
    log_format: Literal["auto", "json", "text"] = "auto"
    log_level: str = "info"


class AppNotFound(SemelError):
    """There is no such module, app or handler. Check the name, written as `module:app`, and the working folder."""


def load_app(options: RunOptions) -> App:
    """The app that `options.app` names, with the endpoint, ledger and attempt log that `options` override."""
    app = _import_app(options.app)
    if options.endpoint_url or options.region or options.profile:
        app.connect_to(options.endpoint_url, options.region, options.profile)
    if options.ledger:
        app.use_ledger(options.ledger)
    if options.attempt_log:
        app.log_to(options.attempt_log)
    for queue in options.queues or ():
        if queue not in app.handlers:
            raise AppNotFound(f"{options.app} has no handler for {queue!r}; it has {', '.join(sorted(app.handlers))}")
    return app


def _import_app(name: str) -> App:
    """The app that `module:attribute` names; the current folder is looked in first."""
    module_name, separator, attribute = name.partition(":")
    if not separator or not attribute or not all(module_name.split(".")):
        raise AppNotFound(f"{name!r} does not name an app: write it as module:app, for example shop:app")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise AppNotFound(f"there is no module {module_name!r} here ({os.getcwd()})") from None
        raise SemelError(f"the module {module_name!r} cannot be imported: {error}") from None
    except SemelError:
        raise
    except (Exception, SystemExit) as error:  # a module that exits while it is imported is not an app, either
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise SemelError(
            f"the module {module_name!r} cannot be imported: {type(error).__name__}: {error} "
            f"({where.filename}, line {where.lineno})"
        ) from error
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        raise AppNotFound(f"{name!r} is not an App: {'there is no such name' if app is None else type(app).__name__}")
    return app
