"""Damage to stored bytes, as by a disk or a crash: flipped bits, overwritten runs, a cut end.

A target reads its input as a list of such edits, so any bytes that a fuzzer makes up mean some damage.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

_EDIT: Final = Struct(">BHB")  # what, where (in 65536ths of the length), with what
MAX_EDITS: Final = 8


def damaged(original: bytes, data: bytes) -> bytes:
    """The bytes after the edits in `data`; unchanged if there are none."""
    content = bytearray(original)
    for start in range(0, min(len(data), MAX_EDITS * _EDIT.size) - _EDIT.size + 1, _EDIT.size):
        kind, where, value = _EDIT.unpack_from(data, start)
        if content:
            _edit(content, kind % 6, where * len(content) >> 16, value)
    return bytes(content)


def _edit(content: bytearray, kind: int, at: int, value: int) -> None:
    match kind:
        case 0:
            content[at] ^= 1 << value % 8
        case 1:
            content[at] = value
        case 2:
            del content[at:]
        case 3:
            content[at : at + 16] = bytes(min(16, len(content) - at))
        case 4:
            del content[at : at + 1 + value]
        case 5:
            content[at:at] = content[at : at + 1 + value]
