"""How the data of each store is saved as a file, and restored.

The rule: no file depends on the version of a server. Redis is saved as hashes (not with DUMP: older servers cannot
restore that), PostgreSQL as SQL, DynamoDB as items with the definition of their table."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from semel.broker import EmbeddedBroker
from semel.ledger.contract import Ledger

if TYPE_CHECKING:
    from servers import dynamodb, postgres, redis

DATA: Final = Path(__file__).with_name("data")
VERSIONS: Final = sorted(path.name for path in DATA.glob("*/"))
# The time at which the data was made, by its own clock: 2100-01-01. It is fixed, so that the data is always the same,
# and in the future, so that nothing has expired for a store that uses its own clock.
MADE: Final = 4_102_444_800.0
TABLE: Final = "ledger"
_ALLOWED: Final = 999_999_999.0  # seconds by which a manual clock can be advanced at once


def set_clock(broker: EmbeddedBroker, seconds: float) -> None:
    """Set a manual clock, which starts at the current time."""
    while (ahead := seconds - broker.clock.now()) > 0:
        broker.clock.advance(min(ahead, _ALLOWED))


def pack(folder: Path, archive: Path) -> None:
    """Pack a folder as .tar.gz. The same content always gives the same bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            info = tarfile.TarInfo(str(path.relative_to(folder)))
            info.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(info, file)
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def unpack(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def dump_postgres(server: postgres.Server, database: str, target: Path) -> None:
    command = [str(server.binaries / "pg_dump"), "--inserts", "--no-owner", "--no-privileges", "--encoding=UTF8"]
    text = subprocess.run(
        [*command, _database(server, database)], check=True, capture_output=True, text=True, cwd="/"
    ).stdout
    # Leave out session settings and psql commands: they are not data, and servers of other versions refuse some.
    lines = [
        line for line in text.splitlines() if line and not re.match(r"--|\\|SET |SELECT pg_catalog.set_config", line)
    ]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


@contextmanager
def postgres_ledger(server: postgres.Server, saved: Path | None) -> Iterator[tuple[str, Ledger]]:
    """Yields the name of a new database, and the ledger in it."""
    import psycopg

    from semel.ledger.postgres.ledger import PostgresLedger

    database = f"upgrade_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
    try:
        if saved is not None:
            with psycopg.connect(_database(server, database), autocommit=True) as connection:
                connection.execute(saved.read_bytes())
        with PostgresLedger(_database(server, database), timeout=30.0) as ledger:
            yield database, ledger
    finally:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {database} WITH (FORCE)".encode())


def _database(server: postgres.Server, name: str) -> str:
    return server.url.rpartition("/")[0] + f"/{name}"


def dump_redis(server: redis.Server, prefix: str, target: Path) -> None:
    import redis

    with redis.Redis.from_url(server.url) as client:
        keys = sorted(key for key in client.scan_iter() if prefix.encode() in key)
        assert {client.type(key) for key in keys} == {b"hash"}, "another type of key needs another way to keep it"
        hashes = {
            _text(key).replace(prefix, "PREFIX"): {
                _text(name): _text(value) for name, value in client.hgetall(key).items()
            }
            for key in keys
        }
    target.write_text(json.dumps(hashes, indent=1, sort_keys=True) + "\n")


@contextmanager
def redis_ledger(server: redis.Server, saved: Path | None) -> Iterator[tuple[str, Ledger]]:
    """Yields a new prefix, and the ledger with it. Keys have no time to live until they are written again."""
    import redis

    from semel.ledger.redis.ledger import RedisLedger

    prefix = f"upgrade-{uuid.uuid4().hex[:12]}"
    if saved is not None:
        with redis.Redis.from_url(server.url) as client:
            for key, fields in json.loads(saved.read_text()).items():
                mapping = {name.encode("latin-1"): value.encode("latin-1") for name, value in fields.items()}
                client.hset(key.replace("PREFIX", prefix), mapping=cast(Any, mapping))
    with RedisLedger(server.url, prefix=prefix, timeout=30.0) as ledger:
        yield prefix, ledger


def _text(value: bytes) -> str:
    return value.decode("latin-1")  # one character per byte, for any bytes


def dump_dynamodb(server: dynamodb.Server, table: str, target: Path) -> None:
    client = server.session().client("dynamodb", endpoint_url=server.url)
    about = client.describe_table(TableName=table)["Table"]
    ttl = client.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    indexes = [
        {name: index[name] for name in ("IndexName", "KeySchema", "Projection")}
        for index in about["GlobalSecondaryIndexes"]
    ]
    items = [item for page in client.get_paginator("scan").paginate(TableName=table) for item in page["Items"]]
    saved = {
        "table": {
            "KeySchema": about["KeySchema"],
            "AttributeDefinitions": about["AttributeDefinitions"],
            "GlobalSecondaryIndexes": indexes,
            "BillingMode": "PAY_PER_REQUEST",
        },
        "ttl": ttl["AttributeName"],
        "items": sorted((_encoded(item) for item in items), key=lambda item: str(item["pk"])),
    }
    target.write_text(json.dumps(saved, indent=1, sort_keys=True) + "\n")


@contextmanager
def dynamodb_ledger(server: dynamodb.Server, saved: Path | None) -> Iterator[tuple[str, Ledger]]:
    """Yields the name of a new table, and the ledger in it."""
    from semel.ledger.dynamodb.ledger import DynamoLedger

    table = f"upgrade-{uuid.uuid4().hex[:12]}"
    if saved is not None:
        client = server.session().client("dynamodb", endpoint_url=server.url)
        kept = json.loads(saved.read_text())
        client.create_table(TableName=table, **kept["table"])
        client.update_time_to_live(
            TableName=table, TimeToLiveSpecification={"Enabled": True, "AttributeName": kept["ttl"]}
        )
        for item in kept["items"]:
            client.put_item(TableName=table, Item=_decoded(item))
    with DynamoLedger(table, **server.options(), create=saved is None, timeout=30.0) as ledger:
        yield table, ledger


def _encoded(value: Any) -> Any:
    """An item as JSON: bytes, which only occur under "B", are encoded as base64."""
    if isinstance(value, dict):
        return {name: _encoded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_encoded(part) for part in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: base64.b64decode(part) if name == "B" and isinstance(part, str) else _decoded(part)
            for name, part in value.items()
        }
    return [_decoded(part) for part in value] if isinstance(value, list) else value
