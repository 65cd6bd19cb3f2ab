"""Receipt handles: which queue, which message, which receive, and a tag that only this broker can make.

The rule: a handle counts if this broker has written it. Whoever has some of them cannot make another.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from hashlib import blake2b
from hmac import compare_digest
from struct import Struct
from typing import Final, NamedTuple

from semel.sqs.errors import RECEIPT_HANDLE_IS_INVALID, ServiceError

KEY_BYTES: Final = 16
_layout = Struct(">IQI")  # queue, row, receive
_HEAD: Final = _layout.size
_TAG: Final = 8  # bytes
_ENCODED_LENGTH: Final = 32  # 24 bytes, without a pad


class Receipt(NamedTuple):
    queue: int
    row: int
    receive: int


class Receipts:
    """Writes and reads handles. `key` is the database's own, so that no other broker's handles pass for ours."""

    def __init__(self, key: bytes) -> None:
        self._keyed = blake2b(key=key, digest_size=_TAG)

    def encode(self, queue: int, row: int, receive: int) -> str:
        head = _layout.pack(queue, row, receive)
        tag = self._keyed.copy()
        tag.update(head)
        return b2a_base64(head + tag.digest(), newline=False).decode()

    def decode(self, handle: str, queue: int) -> Receipt:
        """The receipt behind `handle`. Raises ReceiptHandleIsInvalid for garbage and for another queue's handle."""
        try:
            data = a2b_base64(handle, strict_mode=True) if len(handle) == _ENCODED_LENGTH else b""
            named, row, receive = _layout.unpack_from(data)
        except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not a handle
            raise _garbage(handle) from None
        tag = self._keyed.copy()
        tag.update(data[:_HEAD])
        if not compare_digest(tag.digest(), data[_HEAD:]):
            raise _garbage(handle)
        if named != queue:
            raise ServiceError(RECEIPT_HANDLE_IS_INVALID, f'The receipt handle "{handle}" is not valid for this queue.')
        return Receipt(named, row, receive)


def _garbage(handle: str) -> ServiceError:
    return ServiceError(
        RECEIPT_HANDLE_IS_INVALID, f'The input receipt handle "{handle}" is not a valid receipt handle.'
    )
