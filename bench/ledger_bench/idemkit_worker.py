"""idemkit's queue consumer with a handler that does nothing; each thread passes it a batch of keys at once.

That was faster than `dispatch_sync` for one key at a time. idemkit has no call for several keys: each key costs a claim
and a completion.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from idemkit import (  # type: ignore[import-not-found,unused-ignore]
    ConsumerAction,
    IdempotentConsumer,
    QueueConfig,
    RedisBackend,
)
from idemkit.core.sync_bridge import run_sync  # type: ignore[import-not-found,unused-ignore]

from ledger_bench.harness import Options, Step, drive, expect


def backend_for(options: Options) -> Any:
    if options.store == "redis":
        return RedisBackend.from_url(options.url, max_connections=2 * options.threads * options.batch)
    if options.store == "postgres":
        from idemkit.backends.postgres import (  # type: ignore[import-not-found,unused-ignore]
            PostgresBackend,
            init_pg,
        )

        asyncio.run(init_pg(options.url))
        return PostgresBackend.from_url(options.url)
    from idemkit.backends.dynamodb import DynamoBackend  # type: ignore[import-not-found,unused-ignore]

    return DynamoBackend.from_url(options.url)


async def nothing(_key: str) -> None:
    return None


def main() -> None:
    logging.disable(logging.WARNING)  # it warns once that attempts are counted in memory
    options = Options.read()
    config = QueueConfig(
        dedup_id=lambda key: key,
        visibility_timeout_seconds=120,
        receive_count=lambda _key: 1,
        expires_after_seconds=28 * 86_400,
    )
    consumer = IdempotentConsumer(backend=backend_for(options), config=config, handler=nothing)

    async def all_of(keys: list[str], done: Callable[[int], None]) -> None:
        async def dispatch(key: str) -> None:
            result = await consumer.dispatch(key)
            expect(result.action is ConsumerAction.ACK and result.error is None, f"{key}: {result}")
            done(1)

        await asyncio.gather(*(dispatch(key) for key in keys))

    def step_for(_number: int) -> Step:
        def step(keys: list[str], done: Callable[[int], None]) -> None:
            run_sync(all_of(keys, done))

        return step

    drive(options, step_for)


if __name__ == "__main__":
    main()
