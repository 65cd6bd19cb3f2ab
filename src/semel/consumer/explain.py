"""`semel run --explain`: every setting of every handler, where it came from, and what the handler guarantees.

The rule: the text says what the JSON says, and neither shows a password.
"""

from __future__ import annotations

import textwrap
from contextlib import ExitStack
from typing import Any, Final

from semel.consumer import outbox_dispatcher, preflight
from semel.consumer.app_loader import RunOptions, load_app
from semel.consumer.queue_setup import QueueSetup
from semel.consumer.settings import OPTIONS
from semel.ledger.contract import Ledger

WIDTH: Final = 80


def explain(options: RunOptions) -> dict[str, Any]:
    """The explanation as JSON. Opens the app's ledger and reads the attributes of its queues, but receives nothing."""
    app = load_app(options)
    with ExitStack() as stack:
        ledger = app.ledger(stack)
        client = app.client()
        setups = app.queue_setups(client, ledger, app.tools(stack), only=options.queues, **options.handler_options)
        return {
            "endpoint": client.endpoint,
            "ledger": app.ledger_name,
            "outbox": outbox_dispatcher.described_status(ledger.outbox_status()) if ledger.transactional else None,
            "warnings": preflight.warnings(setups, ledger, client.endpoint),
            "handlers": [_handler(setup, ledger) for setup in setups],
        }


def _handler(setup: QueueSetup, ledger: Ledger) -> dict[str, Any]:
    settings = {
        name: {
            "value": _json_value(getattr(setup.settings, name)),
            "source": setup.settings.sources[name],
            "description": option.description,
        }
        for name, option in OPTIONS.items()
    }
    if setup.settings.retention is None:
        settings["retention"] |= {"value": ledger.retention, "source": "ledger"}
    return {
        "queue": setup.name,
        "handler": setup.handler.name,
        "guarantee": str(setup.handler.guarantee),
        "key": setup.handler.key.origin,
        "fifo": setup.fifo,
        "dead_letter_queue": setup.dead_letters.name if setup.dead_letters else None,
        "settings": settings,
    }


def _json_value(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def text(explained: dict[str, Any]) -> str:
    lines = [f"SQS endpoint  {explained['endpoint']}", f"ledger        {explained['ledger']}"]
    outbox_status = explained["outbox"]
    if outbox_status and outbox_status["waiting"]:
        lines.append(
            f"outbox        {outbox_status['waiting']} messages to send, {outbox_status['refused']} refused by SQS"
        )
        for refused in outbox_status.get("examples", ()):
            lines.append(
                f"  {refused['queue']}, key {refused['key']}, refused {refused['attempts']} times: {refused['error']}"
            )
    for warning in explained["warnings"]:
        lines += ["", *_paragraph("WARNING: ", warning)]
    for handler in explained["handlers"]:
        lines += ["", *_handler_lines(handler)]
    return "\n".join(lines)


def _handler_lines(handler: dict[str, Any]) -> list[str]:
    values = {name: OPTIONS[name].text(setting["value"]) for name, setting in handler["settings"].items()}
    names, shortest = max(map(len, values)), 22
    return [
        f"queue {handler['queue']}: handler {handler['handler']}",
        *_paragraph("  guarantee: ", handler["guarantee"]),
        f"  key: {handler['key']}",
        f"  dead-letter queue: {handler['dead_letter_queue'] or 'none'}",
        "  settings:",
        *(
            f"    {name:<{names}}  {values[name]:<{shortest}}  {setting['source']}"
            for name, setting in handler["settings"].items()
        ),
    ]


def _paragraph(label: str, content: str) -> list[str]:
    indent = " " * (len(label) - len(label.lstrip()) + 2)
    return textwrap.wrap(
        content, WIDTH, initial_indent=label, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
