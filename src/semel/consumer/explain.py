"""Each setting of each handler, where it came from, and what the handler guarantees: for people and for scripts."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from semel.consumer import outbox
from semel.consumer.app_loader import RunOptions, load_app
from semel.ledger.contract import Ledger


def explain(options: RunOptions) -> dict[str, Any]:
    app = load_app(options)
    with ExitStack() as stack:
        ledger = app.ledger(stack)
        client = app.client()
        lanes = app.lanes(client, ledger, app.tools(stack), only=options.queues, **options.handler_options)
        return {
            "endpoint": client.endpoint,
            "ledger": type(ledger).__name__,
            "outbox": outbox.described(ledger.outbox_status()) if ledger.transactional else None,
            "handlers": [
                {
                    "queue": lane.name,
                    "handler": lane.handler.name,
                    "guarantee": str(lane.handler.guarantee),
                    "key": lane.handler.key.origin,
                    "fifo": lane.fifo,
                    "dead_letter_queue": lane.dead_letters.name if lane.dead_letters else None,
                    "settings": {
                        name: {"value": _shown(name, getattr(lane.settings, name), ledger), "source": source}
                        for name, source in lane.settings.sources.items()
                    },
                }
                for lane in lanes
            ],
        }


def _shown(name: str, value: Any, ledger: Ledger) -> Any:
    if name == "keep" and value is None:
        value = ledger.keep
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def text(found: dict[str, Any]) -> str:
    lines = [f"endpoint  {found['endpoint']}", f"ledger    {found['ledger']}"]
    if (waiting := found["outbox"]) and waiting["waiting"]:
        lines.append(f"outbox    {waiting['waiting']} messages to send, {waiting['refused']} of them refused by SQS")
        for one in waiting.get("examples", ()):
            lines.append(f"          {one['queue']}, key {one['key']}, refused {one['attempts']} times: {one['error']}")
    for handler in found["handlers"]:
        lines += [
            "",
            f"{handler['queue']}  →  {handler['handler']}",
            f"  guarantee: {handler['guarantee']}",
            f"  key: {handler['key']}",
            f"  dead letters: {handler['dead_letter_queue'] or 'NONE: what always fails is tried until it expires'}",
        ]
        width = max(len(name) for name in handler["settings"])
        values = {name: str(setting["value"]) for name, setting in handler["settings"].items()}
        wide = min(44, max(map(len, values.values())))
        for name, setting in handler["settings"].items():
            lines.append(f"    {name:<{width}}  {values[name]:<{wide}}  {setting['source']}")
    return "\n".join(lines)
