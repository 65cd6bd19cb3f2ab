"""Packs arrays in PostgreSQL's binary format, several times as fast as the driver does.

The rule: an array has one dimension, and only an array of numbers has NULLs. The layout is what PostgreSQL's
`array_recv` reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, Self

from psycopg import adapters, pq
from psycopg.adapt import Dumper

# Dimensions, whether there may be NULLs, the type of the elements, their number, the index of the first one.
_HEAD: Final = struct.Struct("!iiIii")
_LENGTH: Final = struct.Struct("!i")
_INTEGER: Final = struct.Struct("!iq")
_NUMBER: Final = struct.Struct("!id")
_NULL: Final = _LENGTH.pack(-1)


class _Array(bytes):
    element: int

    @classmethod
    def pack(cls, values: Sequence[Any]) -> Self:
        count = len(values)
        head = _HEAD.pack(1, 1, cls.element, count, 1)
        # Often all values are the same: a claimant, a lease, an empty result.
        if count > 1 and values.count(values[0]) == count:
            return cls(head + b"".join(cls._packed(values[:1])) * count)
        return cls(head + b"".join(cls._packed(values)))

    @staticmethod
    def _packed(values: Sequence[Any]) -> Iterable[bytes]:
        raise NotImplementedError


class ByteStrings(_Array):
    element = 17

    @staticmethod
    def _packed(values: Sequence[bytes]) -> list[bytes]:
        length = _LENGTH.pack
        return [part for value in values for part in (length(len(value)), value)]


class Texts(_Array):
    element = 25

    @staticmethod
    def _packed(values: Sequence[str]) -> list[bytes]:
        return ByteStrings._packed([value.encode() for value in values])


class Integers(_Array):
    element = 20

    @staticmethod
    def _packed(values: Sequence[int]) -> list[bytes]:
        pack = _INTEGER.pack
        return [pack(8, value) for value in values]


class Numbers(_Array):
    element = 701

    @staticmethod
    def _packed(values: Sequence[float | None]) -> list[bytes]:
        pack = _NUMBER.pack
        return [_NULL if value is None else pack(8, value) for value in values]


class _AsIs(Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return obj


def _register(array: type[_Array], oid: int) -> None:
    adapters.register_dumper(array, type(f"{array.__name__}Dumper", (_AsIs,), {"oid": oid}))


for _array, _oid in ((ByteStrings, 1001), (Texts, 1009), (Integers, 1016), (Numbers, 1022)):
    _register(_array, _oid)
