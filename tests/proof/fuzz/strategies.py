"""Inputs for hypothesis: any bytes, and examples with a few changes, which reach deeper into the code."""

from __future__ import annotations

import re
from typing import Final

from hypothesis import strategies as st

from fuzz.table import seeds

MAX_EDITS: Final = 6
_WORD: Final = re.compile(rb"[A-Za-z_$][A-Za-z0-9_$.-]{2,40}")
# Inputs that often break programs: ends of number ranges, odd characters, deep nesting, quotes.
ODD: Final = (
    *(
        b"0",
        b"-1",
        b"1e999",
        b"NaN",
        b"9" * 20,
        b"9" * 400,
        b"9" * 4_400,
        b"18446744073709551616",
        b"-9223372036854775809",
    ),
    *(b"\x00", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\\ud800", b"\xe2\x80\xa8", b"\xf0\x9f\x98\x80", b"\r\n\r\n"),
    *(b'"', b"'", b"\\", b"{", b"}", b"[" * 2_000, b'{"a":' * 1_000, b"(" * 60, b"%", b"%zz", b"${", b"null", b"true"),
    *(b"[]", b"{}", b'""', b",", b"=", b"/", b"../..", b".", b"\n", b"\t", b" ", b";", b":", b"-", b"+"),
)


def words(examples: list[bytes]) -> list[bytes]:
    """The words in the examples, such as the names that a format knows."""
    return sorted({word for example in examples for word in _WORD.findall(example)})


def inputs(name: str) -> st.SearchStrategy[bytes]:
    examples = seeds(name) or [b""]
    return st.one_of(st.binary(max_size=120), changed(examples), changed(examples), changed(examples))


@st.composite
def changed(draw: st.DrawFn, examples: list[bytes]) -> bytes:
    content = bytearray(draw(st.sampled_from(examples)))
    pieces = st.one_of(st.sampled_from([*ODD, *words(examples)]), st.binary(min_size=1, max_size=8))
    for _ in range(draw(st.integers(0, MAX_EDITS))):
        at = draw(st.integers(0, len(content)))
        end = min(len(content), at + draw(st.sampled_from((0, 1, 1, 2, 5, 20, 100))))
        match draw(st.integers(0, 5)):
            case 0 if at < len(content):
                content[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                del content[at:end]
            case 2:
                content[at:end] = draw(pieces)
            case 3:
                content[at:at] = content[at:end]
            case 4:
                del content[at:]
            case _:
                other = draw(st.sampled_from(examples))
                content[at:end] = other[draw(st.integers(0, len(other))) :]
    return bytes(content)
