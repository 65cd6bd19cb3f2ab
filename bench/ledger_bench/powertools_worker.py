"""Powertools' idempotent_function around a function that does nothing. One key per call: it has no batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aws_lambda_powertools.utilities.idempotency import (  # type: ignore[import-not-found,unused-ignore]
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)

from ledger_bench.harness import Options, Step, drive


class Context:
    """A Lambda context. Powertools needs it to let claims in progress expire."""

    def get_remaining_time_in_millis(self) -> int:
        return 60_000


def layer_for(options: Options) -> Any:
    if options.store == "redis":
        from aws_lambda_powertools.utilities.idempotency.persistence.redis import (  # type: ignore[import-not-found,unused-ignore]
            RedisCachePersistenceLayer,
        )

        return RedisCachePersistenceLayer(url=options.url)
    return DynamoDBPersistenceLayer("powertools", boto3_client=dynamodb_client(options.url, options.threads))


def dynamodb_client(url: str, threads: int, table: str = "powertools") -> Any:
    """A client for moto's server, with a connection for each thread; creates the table that Powertools needs."""
    import boto3
    from botocore.config import Config

    client: Any = boto3.client("dynamodb", endpoint_url=url, config=Config(max_pool_connections=threads))
    if table not in client.list_tables()["TableNames"]:
        client.create_table(
            TableName=table,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
    return client


def protected(layer: Any, function: Callable[..., Any], keyed_by: str) -> Callable[..., Any]:
    config = IdempotencyConfig(expires_after_seconds=28 * 86_400)
    config.register_lambda_context(Context())
    made: Callable[..., Any] = idempotent_function(
        function, data_keyword_argument=keyed_by, persistence_store=layer, config=config
    )
    return made


def nothing(*, key: str) -> str:  # noqa: ARG001
    return "done"


def main() -> None:
    options = Options.read()
    once = protected(layer_for(options), nothing, "key")

    def step_for(_number: int) -> Step:
        def step(keys: list[str], done: Callable[[int], None]) -> None:
            for key in keys:
                once(key=key)
                done(1)

        return step

    drive(options, step_for)


if __name__ == "__main__":
    main()
