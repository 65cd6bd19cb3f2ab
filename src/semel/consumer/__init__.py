"""The consumer: takes each message of a queue through a line of stages, so that its effect happens once.

Follow one message in this order: `app` and `runtime` start a `queue_consumer` for each handler; its line is `receiver`,
`claimer`, `scheduler`, `worker` (which calls the handler through `handler_caller`), `dead_letter_sender`, `recorder`,
`acknowledger`. `in_flight` knows the state of every message, `lifecycle` what may follow from it, and `heartbeat` keeps
them hidden and claimed meanwhile. docs/explanation/architecture.md walks down the line.
"""
