"""The file that `semel pipeline init` writes: valid as it is, with other options in comments."""

from __future__ import annotations

from typing import Final

SINKS: Final = {
    "parquet": """\
type = "parquet"                   # files that any reader sees each row of once
path = "orders"                    # or s3://bucket/orders
""",
    "delta": """\
type = "delta"                     # needs: pip install 'semel[delta]'
path = "orders"                    # or s3://bucket/orders
""",
    "postgres": """\
type = "postgres"                  # needs: pip install 'semel[postgres]'
dsn = "${ORDERS_DSN}"              # postgresql://user:secret@host/db, from the environment
table = "orders"                   # created if it is not there
mode = "upsert"                    # or "append"
key = ["id"]                       # the columns that a row is known by, for upsert
""",
    "sqs": """\
type = "sqs"
queue = "orders-clean.fifo"        # FIFO: what a restart sends again is dropped by SQS for 5 minutes
group = "country"                  # the field that the message group is taken from
# body = "payload"                 # a field to send alone; otherwise the row as JSON
# attributes = ["country"]         # fields to send as message attributes, too
""",
    "handler": """\
type = "handler"                   # your function, in Spark's executors, under the ledger
app = "shop:app"                   # as in `semel run shop:app`
""",
}

_FILE: Final = """\
# A queue into a table, each message once. `semel pipeline check FILE` checks this file and what it needs;
# `semel pipeline run FILE` runs it. Stop and start it at any moment.

name = "orders"
checkpoint = "checkpoint"          # all that it must remember: a folder that all executors see, or s3://bucket/folder

[source]
queues = ["orders"]                # names, URLs or ARNs
{key}# ack = "sealed"                   # or "committed": delete from the queue only after the sink's commit
# endpoint_url = "http://127.0.0.1:9324"   # the SQS in the box; AWS if not given
# region = "eu-west-1"
# receivers = 4                    # tasks that receive at once, each with this many threads:
# threads = 8
# max_messages_per_batch = 100_000
# max_seconds_per_batch = 10
# visibility = 120

{schema}
[rejects]                          # messages that do not parse or break a constraint, with reason, field and body
to = "dead-letter-queue"           # the queue's own; or: queue = "bad-orders", or: table = "rejects"

[sink]
{sink}
[trigger]
# every = "10s"                    # at most one batch in this time; without it, as fast as possible

[metrics]
# health = "127.0.0.1:8080"        # serves /health and /metrics

[log]
# attempt_log = "attempts"         # one event for each step of each message

[spark]                            # settings of Spark, if any
# "spark.driver.memory" = "4g"
"""
_SCHEMA: Final = """\
[schema]
ddl = "id STRING NOT NULL, amount DECIMAL(12,2) NOT NULL, country STRING, placed_at TIMESTAMP"
# json_schema = "order.schema.json"        # instead of ddl
# metadata = ["message_id", "sent_at"]     # columns of the source to keep: _message_id, _sent_at
# extra = "reject"                         # bodies with other fields than these; default: "ignore"

[[schema.constraints]]             # a message for which this is not true is rejected
name = "amount is positive"
field = "amount"
check = "amount > 0"
"""
_RAW: Final = """\
# [schema]                         # the handler decodes the body itself
"""
_KEY: Final = """\
key = "$.id"                       # what makes two messages the same; default: idempotency-key attribute, else the id
"""
_KEY_OF_UPDATES: Final = """\
# key = "$.event_id"               # what makes two messages the same; default: idempotency-key attribute, else the id.
#                                  # Not the row's id: an update of a row would be dropped as a duplicate
"""
_DEDUP: Final = """\
dedup = "key"                      # the default: each key once, for as long as the queues keep messages
# dedup = "segments"               # crashes, retries and failed deletes only; not what SQS delivers again after a
#                                  # delete, a producer sends twice, or a redrive brings back
# dedup = "ledger"                 # each key once among all that share the ledger:
# ledger = "postgresql://host/db"
"""
_DEDUP_OF_A_HANDLER: Final = """\
# dedup = "segments"               # the default for a handler: the app's own key and ledger catch every duplicate
"""


def text(sink: str) -> str:
    if sink == "handler":
        return _FILE.format(sink=SINKS[sink], schema=_RAW, key=_DEDUP_OF_A_HANDLER)
    key = _KEY_OF_UPDATES if sink == "postgres" else _KEY
    return _FILE.format(sink=SINKS[sink], schema=_SCHEMA, key=key + _DEDUP)
