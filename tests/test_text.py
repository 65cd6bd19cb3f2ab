"""Foreign text, JSON and times, formatted for people."""

from __future__ import annotations

import json

import pytest

from semel import text


@pytest.mark.parametrize(
    ("foreign", "shown"),
    [
        ("a\x1b[2Jb", "a␛[2Jb"),
        ("a\x00\x7f", "a␀␡"),
        ("a\x9b\u202eb\u2066", "aU+009BU+202EbU+2066"),
        ("\ufeff\u200b\ud800", "U+FEFFU+200BU+D800"),
        ("é 漢字 👩\u200d👩\u200d👧 \n\t", "é 漢字 👩\u200d👩\u200d👧 \n\t"),
    ],
)
def test_nothing_in_foreign_text_controls_a_terminal(foreign: str, shown: str) -> None:
    assert text.printable(foreign) == shown
    assert text.one_line(foreign) == shown.replace("\n", " ").replace("\t", " ")


def test_json_is_indented_and_otherwise_unchanged() -> None:
    source = '{"a":[1.10,{},[ ]],"a":1E400,"b":"x\\n, {y}","c":null}'
    assert text.indented_json(source) == (
        '{\n  "a": [\n    1.10,\n    {},\n    []\n  ],\n  "a": 1E400,\n  "b": "x\\n, {y}",\n  "c": null\n}'
    )
    kinds = {token: kind for kind, token in text.json_tokens(source) if kind}
    assert kinds == {'"a"': "key", "1.10": "number", "1E400": "number", '"b"': "key", '"x\\n, {y}"': "string"} | {
        '"c"': "key",
        "null": "literal",
    }


@pytest.mark.parametrize("source", ["1", '"a"', "{", "[" * 100_000, "", "nothing"])
def test_what_is_not_an_object_or_array_is_not_formatted(source: str) -> None:
    assert not text.is_json(source)


def test_deep_json_is_indented_up_to_a_limit() -> None:
    deep = "[" * 200 + "]" * 200
    assert json.loads(text.indented_json(deep)) == json.loads(deep)
    assert max(map(len, text.indented_json(deep).split("\n"))) <= 2 * 60 + 2


def test_moments_are_utc_and_odd_ones_are_unknown() -> None:
    assert text.moment(1_700_000_000) == "2023-11-14 22:13:20"
    assert [text.moment(at) for at in (None, float("nan"), 1e300)] == ["–"] * 3
