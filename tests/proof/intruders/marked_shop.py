"""An app that fails in every possible way. Its own error texts quote nothing from a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pydantic

from semel import App, Context, Fixed, Reject, Retry

HURRY: dict[str, Any] = {"max_attempts": 2, "retry": Fixed(0.05)}
app = App()


class Model(pydantic.BaseModel):
    id: int
    note: int = 0


@dataclass
class Plain:
    id: int
    note: int = 0


@app.handler("accepts", key="$.id", **HURRY)
def accepts(order: dict[str, Any], context: Context) -> None:
    context.log.info("accepted")


@app.handler("raises", key="$.id", **HURRY)
def raises(order: dict[str, Any]) -> None:
    raise ValueError("the shop is closed")


@app.handler("retries", key="$.id", **HURRY)
def retries(order: dict[str, Any]) -> None:
    raise Retry("later")


@app.handler("rejects", key="$.id", **HURRY)
def rejects(order: dict[str, Any]) -> None:
    raise Reject("not for us")


@app.handler("models", key="$.id", **HURRY)
def models(order: Model) -> None: ...


@app.handler("plain", key="$.id", **HURRY)
def plain(order: Plain) -> None: ...


@app.handler("texts", **HURRY)
def texts(order: str) -> None:
    raise RuntimeError("no text is taken")


@app.handler("keyless", key="$.nothing", **HURRY)
def keyless(order: dict[str, Any]) -> None: ...
