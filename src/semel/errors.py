"""The errors that Semel raises: each says what happened, to what, and what to do next.

All of them can be imported from here. A second base class is in parentheses: `except Unavailable` catches all errors
that may go away by waiting, and `except PermissionDenied` those that need other credentials or permissions.

  SemelError                                        Read its text: it says what happened and what to do.
  ├─ StartError                                     Correct what the text names, and start again.
  ├─ InvalidRequest                                 Correct what the text names, and ask again.
  │  ├─ MappingError                                Write the option as the text shows.
  │  ├─ FilterError                                 Correct the filter at `position`.
  │  ├─ PlanError                                   Change the option that the text names.
  │  └─ SelectionError                              Select in one way: a filter, ids, or all.
  ├─ Unavailable                                    Wait and try again.
  ├─ PermissionDenied                               Ask whoever grants permissions: waiting does not help.
  │  └─ DeleteRefused                               Allow sqs:DeleteMessage on the queue.
  ├─ MissingExtra                                   Run the `pip install` command in the text.
  ├─ ServiceError                                   Catch `SqsError` instead: clients raise only that.
  ├─ SqsError                                       Try again later if `retryable` is true, else follow the text.
  │  ├─ BadConfiguration                            Set what the text names.
  │  │  └─ NoCredentials (PermissionDenied)         Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile.
  │  ├─ BadRequest                                  Change the request: the same one fails again.
  │  │  ├─ QueueNotFound                            Check the name, region, account and endpoint, or create the queue.
  │  │  ├─ QueueExists                              Use its attributes, or another name.
  │  │  └─ ReceiptInvalid                           Receive the message again, and use the new receipt handle.
  │  ├─ AccessDenied (PermissionDenied)             Allow the action in IAM or in the queue's policy.
  │  │  └─ CredentialsRefused                       Renew the credentials, and check this machine's clock.
  │  ├─ OverLimit                                   Delete messages that are in flight, then call again.
  │  ├─ TooSoon                                     Wait for 60 seconds, then call again.
  │  ├─ Throttled (Unavailable)                     Call less often, and try again later.
  │  ├─ ServerFailed (Unavailable)                  Try again later.
  │  ├─ Unreachable (Unavailable)                   Check the endpoint and the network, then try again.
  │  ├─ Cancelled                                   Stop, or call again with a new `Cancel`.
  │  └─ AdminError                                  Check that the endpoint is a Semel broker, and follow the text.
  ├─ FaultError                                     Choose a fault that the text lists, and a rate from 0 to 1.
  ├─ NoKey                                          Set the key in the producer, or change `key` or `missing_key`.
  ├─ Undecodable                                    Correct the producer, or the handler's type.
  ├─ LedgerError                                    Do what the text says.
  │  ├─ LedgerUnavailable (Unavailable)             Do no work for the key, and try again later.
  │  │  └─ OutcomeUnknown                           Look the key up before you do anything else.
  │  ├─ Fenced                                      Stop, and leave the key to the newer claim.
  │  ├─ InProgress                                  Call again later, or use `concurrent="wait"`.
  │  ├─ PayloadConflict                             Choose a key that tells the two calls apart.
  │  └─ ResultNotKept                               Look up what the function did, or `clear` the key to run it again.
  ├─ Outcome                                        Raise one of its subclasses in a handler, and do not catch it.
  │  ├─ Retry                                       Raise it in a handler to try again later.
  │  ├─ Reject                                      Raise it in a handler to send the message to the dead-letter queue.
  │  ├─ Skip                                        Raise it in a handler when there is nothing to do.
  │  └─ Lost                                        Stop working on the message, and do not catch it.
  ├─ AppNotFound                                    Check the name, written as `module:app`, and the working folder.
  ├─ TrailError                                     Check the folder that workers write to: `--attempt-log`.
  ├─ Refused                                        Correct the command as the text says.
  ├─ WorkerError                                    Check that the worker runs, its address and its token.
  ├─ DoctorError                                    Correct the input or option that the text names.
  ├─ BrokenLog                                      Copy the file again from its source.
  ├─ HistoryError                                   Correct the file or the option that the text names.
  ├─ PeekRisk                                       Allow it with `receive=True` if messages may be moved.
  ├─ AuditError                                     Set SEMEL_STATE to a folder that this user may write to.
  ├─ EditError                                      Correct the copy as the text says, and send it again.
  ├─ NoSuchMessage                                  List the queue's messages: `semel dlq list QUEUE`.
  ├─ JobNotRunning                                  Start it again for the rest, if something is left.
  ├─ JobCancelled                                   Start it again for the rest.
  ├─ JobStopped                                     Remove the reason, then start the job again for the rest.
  │  ├─ CanaryFailed                                Fix what made them fail, then redrive again.
  │  └─ TooManyFailures                             Fix what makes them fail, then redrive the rest.
  ├─ NoSuchJob                                      List the jobs: `semel jobs list`.
  ├─ NoSuchQueue                                    Check the queue's name, region and endpoint.
  ├─ NotDeadLetterQueue                             Check the name, or allow it with `any_queue=True`.
  ├─ NoTarget                                       Choose the target queue with `to`.
  ├─ RemoteError                                    Check that the dashboard runs, its address and its token.
  ├─ SnapshotError                                  Check the file and the line that the text names.
  ├─ JavaError                                      Install `semel[spark]`, or set JAVA_HOME to Java 17 or newer.
  ├─ SparkError                                     Install `semel[spark]`, or remove the cause in the text.
  ├─ CheckpointError                                Do what the text says.
  │  ├─ Disagreement                                Restore the part that is wrong, or run `semel pipeline reset`.
  │  └─ ResetOutdated                               Run the reset again.
  ├─ PipelineChanged                                Undo each change, or follow the text for it.
  ├─ PipelineFileError                              Correct each mistake as the text says.
  ├─ PipelineFailed                                 Fix the cause, then run the pipeline again.
  │  └─ SparkGone                                   Check the machine's memory, then run the pipeline again.
  ├─ SchemaError                                    Change the field that the text names.
  ├─ SegmentDamaged                                 Restore the file from a copy; see docs/reference/spark.md.
  ├─ LogError                                       Do what the text says.
  │  ├─ OtherQuery                                  Give each query a `segments` folder of its own.
  │  ├─ BatchAlreadyCommitted                       Do nothing: the messages return to the queue by themselves.
  │  └─ TooManyUnconfirmed                          Check that SQS allows and confirms deletes, then start again.
  ├─ StorageError                                   Correct the folder's address as the text says.
  │  ├─ StoragePermissionDenied (PermissionDenied)  Allow reading, writing and listing in the folder.
  │  └─ StorageUnavailable (Unavailable)            Wait and try again.
  ├─ SinkError                                      Do what the text says.
  │  ├─ SinkPermissionDenied (PermissionDenied)     Allow writing to the table.
  │  ├─ SinkUnavailable (Unavailable)               Wait, then run the pipeline again.
  │  └─ ForeignTable                                Choose a table of its own for each pipeline.
  ├─ OptionError                                    Correct the option that the text names.
  └─ SendError                                      Do what the text says.
     └─ SendPermissionDenied (PermissionDenied)     Allow sqs:SendMessage on the queue.

Packages define their own errors. This module loads each one on first use, because all of them import this module.
"""

from __future__ import annotations

from typing import Final

from semel.lazy_imports import lazy_names

_WHERE: Final = {
    "AccessDenied": "semel.sqs.errors",
    "AdminError": "semel.sqs.client.admin",
    "AppNotFound": "semel.consumer.app_loader",
    "AuditError": "semel.dlq.audit",
    "BadConfiguration": "semel.sqs.errors",
    "BadRequest": "semel.sqs.errors",
    "BatchAlreadyCommitted": "semel.spark.segments.segment_log",
    "BrokenLog": "semel.doctor.logs.streams",
    "CanaryFailed": "semel.dlq.redrive.canary",
    "Cancelled": "semel.sqs.errors",
    "CheckpointError": "semel.spark.pipeline.checkpoint",
    "CredentialsRefused": "semel.sqs.errors",
    "DeleteRefused": "semel.spark.source.acknowledger",
    "Disagreement": "semel.spark.pipeline.checkpoint",
    "DoctorError": "semel.doctor.errors",
    "EditError": "semel.dlq.edit",
    "FaultError": "semel.broker.faults",
    "Fenced": "semel.ledger.contract",
    "FilterError": "semel.dlq.filter.lexer",
    "ForeignTable": "semel.spark.sinks.contract",
    "HistoryError": "semel.verify.file_parser",
    "InProgress": "semel.ledger.idempotent.decorator",
    "JavaError": "semel.spark.java",
    "JobCancelled": "semel.dlq.jobs.job",
    "JobNotRunning": "semel.dlq.jobs.job_control",
    "JobStopped": "semel.dlq.jobs.job",
    "LedgerError": "semel.ledger.contract",
    "LedgerUnavailable": "semel.ledger.contract",
    "LogError": "semel.spark.segments.segment_log",
    "Lost": "semel.consumer.outcomes",
    "MappingError": "semel.telemetry.field_mapping",
    "MissingExtra": "semel.extras",
    "NoCredentials": "semel.sqs.errors",
    "NoKey": "semel.messages.keys",
    "NoSuchJob": "semel.dlq.jobs.job_store",
    "NoSuchMessage": "semel.dlq.edit",
    "NoSuchQueue": "semel.dlq.queues",
    "NoTarget": "semel.dlq.redrive.sender",
    "NotDeadLetterQueue": "semel.dlq.queues",
    "OptionError": "semel.spark.source.options",
    "OtherQuery": "semel.spark.segments.segment_log",
    "Outcome": "semel.consumer.outcomes",
    "OutcomeUnknown": "semel.ledger.contract",
    "OverLimit": "semel.sqs.errors",
    "PayloadConflict": "semel.ledger.idempotent.decorator",
    "PeekRisk": "semel.dlq.access",
    "PipelineChanged": "semel.spark.pipeline.compatibility",
    "PipelineFailed": "semel.spark.pipeline.query_failures",
    "PipelineFileError": "semel.spark.pipeline.config",
    "PlanError": "semel.dlq.redrive.plan",
    "QueueExists": "semel.sqs.errors",
    "QueueNotFound": "semel.sqs.errors",
    "ReceiptInvalid": "semel.sqs.errors",
    "Refused": "semel.telemetry.worker_control",
    "Reject": "semel.consumer.outcomes",
    "RemoteError": "semel.dlq.remote_service",
    "ResetOutdated": "semel.spark.pipeline.agreement",
    "ResultNotKept": "semel.ledger.idempotent.decorator",
    "Retry": "semel.consumer.outcomes",
    "SchemaError": "semel.spark.pipeline.body_schema",
    "SegmentDamaged": "semel.spark.segments.codec",
    "SelectionError": "semel.dlq.selection",
    "SendError": "semel.spark.writer.sender",
    "SendPermissionDenied": "semel.spark.writer.sender",
    "ServerFailed": "semel.sqs.errors",
    "ServiceError": "semel.sqs.errors",
    "SinkError": "semel.spark.sinks.contract",
    "SinkPermissionDenied": "semel.spark.sinks.contract",
    "SinkUnavailable": "semel.spark.sinks.contract",
    "Skip": "semel.consumer.outcomes",
    "SnapshotError": "semel.dlq.snapshots",
    "SparkError": "semel.spark.spark_session",
    "SparkGone": "semel.spark.pipeline.query_failures",
    "SqsError": "semel.sqs.errors",
    "StorageError": "semel.spark.segments.storage",
    "StoragePermissionDenied": "semel.spark.segments.storage",
    "StorageUnavailable": "semel.spark.segments.storage",
    "Throttled": "semel.sqs.errors",
    "TooManyFailures": "semel.dlq.redrive.runner",
    "TooManyUnconfirmed": "semel.spark.source.committer",
    "TooSoon": "semel.sqs.errors",
    "TrailError": "semel.telemetry.message_trail",
    "Undecodable": "semel.messages.decoder",
    "Unreachable": "semel.sqs.errors",
    "WorkerError": "semel.telemetry.worker_client",
}
_HERE: Final = ("InvalidRequest", "PermissionDenied", "SemelError", "StartError", "Unavailable")
_EXTRAS: Final = {name: "spark" for name, module in _WHERE.items() if module.startswith("semel.spark.")}
# A star import gives the same names on every machine: errors that need an extra have to be imported by name.
__all__ = [*_HERE, *(name for name in _WHERE if name not in _EXTRAS)]
__getattr__, __dir__ = lazy_names(__name__, _WHERE, _EXTRAS)


class SemelError(Exception):
    """Any error that Semel raises on purpose. Read its text: it says what happened and what to do.

    >>> from semel import Client, SemelError
    >>> try:
    ...     Client().queue("absent").send("hello")
    ... except SemelError as error:
    ...     print(type(error).__name__)
    QueueNotFound
    """


class StartError(SemelError):
    """The broker or the attempt log cannot start: a bad option, data folder, port or schema. Correct what the text
    names, and start again."""


class InvalidRequest(SemelError):
    """An option, filter or selection is wrong, whatever the state of the queues. Nothing was done. On the command line
    this counts as wrong usage. Correct what the text names, and ask again."""


class Unavailable(SemelError):
    """Something that Semel depends on does not answer: SQS, a ledger, a store, a table. Problems that waiting cannot
    fix, such as permissions, are other errors. Wait and try again."""


class PermissionDenied(SemelError):
    """Credentials are missing or wrong, or do not allow this. Ask whoever grants permissions: waiting does not help."""
