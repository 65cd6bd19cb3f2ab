"""`semel pipeline reset`: starts Spark's progress anew if checkpoint, segment log and table do not belong together.

The rule: before it changes anything, it says what it will do, what will be repeated and what may be lost. If messages
may be lost, it changes nothing unless the user agrees.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from semel.errors import SemelError
from semel.spark.pipeline import agreement
from semel.spark.pipeline.agreement import Reset
from semel.spark.pipeline.checkpoint import Checkpoint, CheckpointError, Record
from semel.spark.pipeline.config import Dedup, Pipeline, SqsSpec
from semel.spark.pipeline.sink_factory import rejects_of, sink_of


class PipelineReset:
    """A planned reset, which `carry_out` carries out. It holds the checkpoint meanwhile."""

    def __init__(self, pipeline: Pipeline, stack: ExitStack) -> None:
        self.pipeline = pipeline
        self._checkpoint = Checkpoint(pipeline.checkpoint)
        record = self._checkpoint.record()
        if record is None:
            self._checkpoint.fresh({})  # an error if the pipeline has run
            raise CheckpointError(
                f"there is nothing to reset: {pipeline.checkpoint} holds no pipeline.json, so this pipeline has not run"
            )
        stack.enter_context(self._checkpoint.held())
        self._record: Record = record
        self._sinks = (sink_of(pipeline), rejects_of(pipeline))
        for sink in self._sinks:
            stack.callback(sink.close)
        self._log = agreement.log_of(self._checkpoint)
        self.why = self._disagreement()
        self.plan: Reset = agreement.plan_reset(self._checkpoint, record, self._log, self._sinks)

    def _disagreement(self) -> SemelError | None:
        try:
            agreement.check(self._checkpoint, self._record, self._log, self._sinks)
        except CheckpointError as error:
            return error
        return None

    def carry_out(self) -> None:
        agreement.reset(self._checkpoint, self._record, self._log, self._sinks, self.plan)

    def plain(self, done: bool) -> dict[str, Any]:
        why = None if self.why is None else str(self.why)
        lines = {"repeats": list(self._repeats()), "may_lose": list(self._may_lose())}
        return {"pipeline": self.pipeline.name, "done": done, "disagreement": why, **asdict(self.plan), **lines}

    def as_text(self) -> list[str]:
        plan, sink = self.plan, self._sinks[0].name
        lines = [
            f"{self.pipeline.name}: {self.pipeline.checkpoint} into {sink}",
            f"  why       {self.why or 'checkpoint, segment log and table belong together; a reset is not needed'}",
            f"  progress  Spark's folder query/ is removed; the next run begins with batch {plan.base:,}",
            f"  first     the next run writes {plan.replayed:,} messages that are sealed and not yet in the table",
            f"  kept      what is in the table is not written again; {plan.in_sink:,} messages of it were still sealed",
        ]
        if plan.missing:
            lines.append(f"  missing   {plan.missing}; a reset does not bring them back")
        lines += [f"  repeats   {line}" for line in self._repeats()]
        lines += [f"  MAY LOSE  {line}" for line in self._may_lose()]
        return lines

    def _repeats(self) -> Iterator[str]:
        if self.pipeline.source.dedup is Dedup.KEY:
            yield (
                "the keys that were seen so far are forgotten (dedup = key): a message that came before the reset and "
                "is sent or delivered again after it becomes a row again"
            )
        if isinstance(self.pipeline.sink, SqsSpec) and self.plan.replayed:
            yield "rows of the batch in progress that were sent but not recorded may be sent again, with the same key"
        if self.plan.rejects_again:
            yield "rejected messages of the batch in progress: they are stored already, and will be stored once more"
        if self.plan.unknown:
            yield (
                f"messages of {', '.join(self.plan.unknown)}: they are in the table, the segment is gone, and perhaps "
                "they were not deleted from the queue"
            )

    def _may_lose(self) -> Iterator[str]:
        if self.plan.log_missing:
            yield (
                f"the segment log {self._log.store.url} is not the one that this pipeline has sealed its messages in. "
                "If you have that one, put it back instead. What was sealed in it and is not in the table is lost"
            )
        if self.plan.older_log:
            yield (
                f"the segment log {self._log.store.url} is an older copy than the table. If you have the newer one, "
                "put it back instead. What was sealed in that one only and is not in the table is lost; messages whose "
                "delete was in doubt there may come twice"
            )
        for name in self.plan.lost:
            yield f"{self._log.store.url}/{name} is gone or damaged: what was in it is in no queue any more"
        for name in self.plan.dropped:
            yield (
                f"{self._log.store.url}/{name} is dropped. A task has sealed it after files of the log were lost or "
                "replaced, and its messages may be in no table and in no queue any more. Copy the file if you need them"
            )
