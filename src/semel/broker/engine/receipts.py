"""Receipt handles: which queue, which message, which receive; recognisable as ours, and opaque to clients."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from semel.sqs.errors import RECEIPT_HANDLE_IS_INVALID, ServiceError

_layout = Struct(">IQII")  # queue, row, receive, checksum
_head = Struct(">IQI")
_ENCODED_LENGTH = 28


class Receipt(NamedTuple):
    queue: int
    row: int
    receive: int


class Receipts:
    """Writes and reads handles. `secret` is the database's own, so that no other broker's handles pass for ours."""

    def __init__(self, secret: int) -> None:
        self._secret = secret

    def encode(self, queue: int, row: int, receive: int) -> str:
        checksum = crc32(_head.pack(queue, row, receive), self._secret)
        # 20 bytes make 27 characters and one pad; the pad is kept so that decoding needs no arithmetic.
        return b2a_base64(_layout.pack(queue, row, receive, checksum), newline=False).decode()

    def decode(self, handle: str, queue: int) -> Receipt:
        """The receipt behind `handle`. Raises ReceiptHandleIsInvalid for garbage and for another queue's handle."""
        try:
            data = a2b_base64(handle, strict_mode=True) if len(handle) == _ENCODED_LENGTH else b""
            named, row, receive, checksum = _layout.unpack(data)
        except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not a handle
            raise _garbage(handle) from None
        if checksum != crc32(data[:16], self._secret):
            raise _garbage(handle)
        if named != queue:
            raise ServiceError(RECEIPT_HANDLE_IS_INVALID, f'The receipt handle "{handle}" is not valid for this queue.')
        return Receipt(named, row, receive)


def _garbage(handle: str) -> ServiceError:
    return ServiceError(
        RECEIPT_HANDLE_IS_INVALID, f'The input receipt handle "{handle}" is not a valid receipt handle.'
    )
