"""Receipt handles: a queue, a message, a receive of it, and a tag that only this broker can make.

Rules: a handle is valid only if this broker made it, and nobody can make a new one from others. No handle stands for
two receives: after a power cut, receives may be forgotten and their counts used again, but the start differs.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from hashlib import blake2b
from hmac import compare_digest
from struct import Struct
from typing import Final, NamedTuple

from semel.sqs.errors import RECEIPT_HANDLE_IS_INVALID, ServiceError

KEY_BYTES: Final = 16
_layout = Struct(">IQII")  # queue, row, receive, start
_HEAD: Final = _layout.size
_TAG: Final = 10  # bytes
_ENCODED_LENGTH: Final = 40  # 30 bytes, without a pad


class Receipt(NamedTuple):
    """`receive` is the message's receive count, `start` the number of the broker's start in which it was received."""

    queue: int
    row: int
    receive: int
    start: int


_receipt = Receipt._make


class Receipts:
    """Writes and reads handles. `key` belongs to the database, so that another broker's handles are not accepted."""

    def __init__(self, key: bytes) -> None:
        self._keyed = blake2b(key=key, digest_size=_TAG)

    def encode(self, queue: int, row: int, receive: int, start: int) -> str:
        head = _layout.pack(queue, row, receive, start)
        tag = self._keyed.copy()
        tag.update(head)
        return b2a_base64(head + tag.digest(), newline=False).decode()

    def parse(self, handle: str) -> Receipt:
        """The content of a handle; its tag is not checked. Raises ReceiptHandleIsInvalid for garbage."""
        try:
            data = a2b_base64(handle, strict_mode=True) if len(handle) == _ENCODED_LENGTH else b""
            return _receipt(_layout.unpack_from(data))
        except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not a handle
            raise _garbage(handle) from None

    def check(self, handle: str, receipt: Receipt, queue: int) -> None:
        """Raises ReceiptHandleIsInvalid for a handle that this broker has not made, or of another queue."""
        tag = self._keyed.copy()
        data = a2b_base64(handle)
        tag.update(data[:_HEAD])
        if not compare_digest(tag.digest(), data[_HEAD:]):
            raise _garbage(handle)
        if receipt.queue != queue:
            raise ServiceError(RECEIPT_HANDLE_IS_INVALID, f'The receipt handle "{handle}" is not valid for this queue.')

    def decode(self, handle: str, queue: int) -> Receipt:
        """The receipt behind `handle`, checked."""
        receipt = self.parse(handle)
        self.check(handle, receipt, queue)
        return receipt


def _garbage(handle: str) -> ServiceError:
    return ServiceError(
        RECEIPT_HANDLE_IS_INVALID, f'The input receipt handle "{handle}" is not a valid receipt handle.'
    )
