"""The errors that Semel raises: each says what happened, to what, and what to do next."""


class SemelError(Exception):
    """Any error that Semel raises on purpose; its text is meant for the person who reads it."""


class StartError(SemelError):
    """The broker cannot start: a bad option, data folder, port or schema."""


class InvalidRequest(SemelError):
    """What was asked for makes no sense, whatever the state of the queues: an option, a filter, a selection. Nothing
    was done. On the command line this is wrong usage."""


class Unavailable(SemelError):
    """Something that Semel depends on does not answer: SQS, a ledger, a store, a table. Waiting may help; what waiting
    cannot fix, such as permissions, is another error."""


class PermissionDenied(SemelError):
    """Credentials are missing or wrong, or may not do this: only whoever grants permissions can fix it."""
