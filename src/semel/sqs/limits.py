"""The limits of SQS, each defined once. Times are in seconds unless the name says otherwise."""

import re
from decimal import Decimal
from typing import Final

MAX_MESSAGE_BYTES: Final = 1_048_576
MIN_MESSAGE_BYTES: Final = 1_024
MAX_BATCH_BYTES: Final = 1_048_576
MAX_BATCH_ENTRIES: Final = 10
MAX_MESSAGE_ATTRIBUTES: Final = 10
MAX_RECEIVE: Final = 10
MAX_WAIT: Final = 20
MAX_VISIBILITY: Final = 43_200
MAX_DELAY: Final = 900
MIN_RETENTION: Final = 60
MAX_RETENTION: Final = 1_209_600
MAX_IN_FLIGHT: Final = 120_000
FIFO_LOOK_AHEAD: Final = 120_000
DEDUP_WINDOW: Final = 300
RECEIVE_ATTEMPT_WINDOW: Final = 300
PURGE_PAUSE: Final = 60
RECREATE_PAUSE: Final = 60
MAX_RECEIVE_COUNT: Final = 1_000
MAX_MOVE_RATE: Final = 500
MAX_MOVE_TASKS: Final = 100
MAX_LISTED: Final = 1_000
MAX_POLICY_BYTES: Final = 8_192
MAX_REDRIVE_SOURCES: Final = 10
MAX_TAGS: Final = 50

QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}\Z|(?=.{6,80}\Z)[A-Za-z0-9_-]+\.fifo\Z")
BATCH_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
# Group, deduplication and receive-attempt ids: alphanumeric and ASCII punctuation, no space.
TOKEN: Final = re.compile(r"[!-~]{1,128}\Z")
# Letters and digits of any script: the service accepts more than its documentation says.
ATTRIBUTE_NAME: Final = re.compile(r"(?!\.)(?!.*\.\.)(?!(?i:aws|amazon)\.)[\w.-]{1,256}(?<!\.)\Z")
ATTRIBUTE_TYPE: Final = re.compile(r"(String|Number|Binary)(\.[^\x00-\x1f]{1,249})?\Z")
# What SQS refuses in a body: everything that XML 1.0 cannot carry.
FORBIDDEN_CHARACTER: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?\Z")


def is_number(text: str) -> bool:
    """Whether `text` can be the value of a Number attribute: up to 38 digits, 10^-128 to 10^126."""
    if not NUMBER.match(text.strip()):
        return False
    number = Decimal(text.strip())
    digits = len("".join(map(str, number.as_tuple().digits)).strip("0"))
    return digits <= 38 and (not number or Decimal("1e-128") <= abs(number) <= Decimal("1e126"))
