"""The filter language: what its conditions mean, its errors, and that no message makes it fail."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlq.dead_letters import NOW, message
from semel.dlq import fingerprints
from semel.dlq.filter.fields import FIELDS, InvalidValue, Pattern
from semel.dlq.filter.lexer import EXAMPLE
from semel.dlq.filter.parser import FilterError, parse
from semel.dlq.messages import DeadLetterMessage
from semel.sqs.client.messages import Attribute


def matches(text: str, **known: Any) -> bool:
    return parse(text).matches(message(**known), NOW)


TRUE = (
    "",
    "   ",
    "timeout",
    "TIMEOUT acme-is-not-searched-for or o-17",
    "6d2f",
    "aa11",
    "error ~ timeout",
    "error ~ TimeoutError",
    'error ~ "timed out"',
    "error ~ /timed (out|in) after \\d+ s$/",
    "error ~ /^TIMEOUT/i",
    "error = \"reading from 'bank' timed out after 30 s\"",
    "error = \"TimeoutError: reading from 'bank' timed out after 30 s\"",
    "error exists",
    "reason = TimeoutError",
    "reason != ValueError",
    "key = o-17 and id = 6d2f and id = aa11",
    "queue = orders and source in (payments, orders)",
    "age > 59m and age >= 1h and age <= 3600 and age < 1h1s",
    "receives >= 3 and receives <= 3 and receives = 3 and not receives > 3",
    "attempts in (1, 2, 3)",
    "size < 1k and size > 10",
    "sent >= 2027-01-15T06:00Z and sent < 2027-01-15T07:00:00.5+00:00",
    "sent > -61m and sent < now and sent < +1h",
    "attr.tenant = acme",
    "attr.tenant ~ CM",
    "attr.tenant in (x, acme)",
    "attr.tenant not in (x, y)",
    "attr.weight > 12 and attr.weight < 13 and attr.weight = 12.5",
    "not attr.other exists",
    "not attr.other != 5",
    "$.order.total > 100 and $.order.total = 120.5",
    "$.order.id = o-17",
    "$['order']['id'] ~ o-",
    "$.lines[0] = 1 and $.lines[-1] <= 1",
    "$.order.paid = false and $.order.note = null and $.order.note exists",
    '$.order ~ "total"',
    "not (receives >= 5 or attr.tenant = umbrella)",
    "receives = 5 or receives = 3 and attr.tenant = acme",
    "NOT receives = 5 AND attr.tenant = acme",
    "body ~ order",
    "receives==3",
)
FALSE = (
    "nowhere",
    "timeout nowhere",
    "error ~ /TIMEOUT/",
    'error = "timed out"',
    "receives = 5",
    "group exists",
    "group != a",
    "attr.other != 5",
    "attr.tenant > 5",
    'attr.weight = "13"',
    "$.order.total = acme",
    '$.order.paid = "false"',
    "$.order.id > 5",
    "$.order.missing = 1 or $.order.missing != 1 or $.order.id.deeper exists",
    "$.lines[7] exists",
    "$.order = 5",
    "age > 1h",
    "sent > -59m",
    "expires < +1h",
    "first_received exists",
    "(receives = 5 or receives = 3) and attr.tenant = umbrella",
    "fingerprint = 0123456789",
)


@pytest.mark.parametrize("text", TRUE)
def test_what_holds_for_the_message_matches(text: str) -> None:
    assert matches(text)


@pytest.mark.parametrize("text", FALSE)
def test_what_does_not_hold_does_not_match(text: str) -> None:
    assert not matches(text)


@pytest.mark.parametrize("text", [*TRUE, *FALSE])
def test_the_text_of_a_filter_is_the_same_filter(text: str) -> None:
    parsed = parse(text)
    again = parse(str(parsed))
    assert again == parsed
    assert again.matches(message(), NOW) == parsed.matches(message(), NOW)


def test_a_message_that_sqs_moved_has_no_error() -> None:
    moved: dict[str, Any] = {"error": "", "reason": "", "key": "", "by_semel": False}
    assert not matches("error exists", **moved)
    assert not matches("error != timeout", **moved)
    assert matches("not error exists", **moved)


def test_a_fingerprint_selects_all_errors_of_its_kind() -> None:
    print_ = fingerprints.of(message())
    assert matches(f"fingerprint = {print_}", error="reading from 'shop' timed out after 45 s")
    assert not matches(f"fingerprint = {print_}", error="reading from 'shop' was refused")


def test_numbers_that_no_float_can_hold_are_distinguished() -> None:
    assert matches("$.id = 12345678901234567", body='{"id": 12345678901234567}')
    assert not matches("$.id = 12345678901234567", body='{"id": 12345678901234568}')


@pytest.mark.parametrize(
    ("text", "needs"),
    [("", False), ("error ~ x", False), ("word", True), ("body ~ x", True), ("receives = 1 or not $.a = 1", True)],
)
def test_a_filter_knows_whether_it_needs_the_body(text: str, needs: bool) -> None:
    assert parse(text).needs_body is needs


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("eror ~ timeout", 0, "did you mean error?"),
        ("receives = 3 and foo > 3", 17, "there is no field 'foo'; the fields are error,"),
        ("receives > many", 11, "'many' is not a number; write receives >= 5"),
        ("age > soon", 6, "is not a duration; write age > 2h"),
        ("sent > yesterday", 7, "is not a time; write sent >= 2026-11-01T10:00Z"),
        ("sent > 2h", 7, "-2h for two hours ago"),
        ("size > big", 7, "size > 1000 or size > 64k"),
        ("error > a", 8, "error is a text; compare it with ="),
        ("receives ~ 3", 11, "receives is a number; compare it with ="),
        ("error = /a/", 8, "a pattern needs ~, as in error ~ /a/"),
        ("receives =", 10, "receives = needs a value"),
        ("receives = and", 11, "receives = needs a value"),
        ("(receives = 3", 0, "unclosed ("),
        ("receives = 3)", 12, "unmatched )"),
        ("= 3", 0, "expected a field or a word, not '='"),
        ("and", 0, "expected a field or a word, not 'and'"),
        ("a or", 4, "expected a condition"),
        ('error ~ "open', 8, "unterminated quote"),
        ("!error", 0, "write != to compare"),
        ("error ~ /(a/", 8, "invalid pattern: missing ): (a"),
        ("error ~ /a(?=b)/", 8, "invalid pattern: invalid perl operator: (?="),
        (r"error ~ /(a)\1/", 8, r"invalid pattern: invalid escape sequence: \1"),
        ("error ~ /\ud800/", 8, "not valid Unicode"),
        (f"error ~ /{'a' * 201}/", 8, "the pattern has 201 characters; the maximum is 200"),
        ("error ~ /(.{30}){30}/", 8, "the pattern is too large"),
        ("error ~ /a/gx", 8, "unknown pattern flag 'gx'"),
        ("error in a", 9, "`in` needs a list"),
        ("error in (a b)", 12, "expected , or )"),
        ("$.a", 0, "a JSON path needs a comparison"),
        ("(" * 60 + "a" + ")" * 60, 50, "more than 50 deep"),
        ("not " * 60 + "a", 200, "more than 50 deep"),
        ("a" * 9_000, 8_000, "the maximum is 8,000"),
    ],
)
def test_an_error_shows_the_position_and_an_example(text: str, position: int, says: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text)
    assert caught.value.position == position
    assert says in caught.value.problem
    lines = str(caught.value).splitlines()
    assert lines[2].index("^") - 2 == min(position, 60)
    assert lines[3].startswith("example: ")


def test_the_examples_in_errors_are_filters() -> None:
    assert str(parse(EXAMPLE)) == EXAMPLE


# Patterns.


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("^a", "ba", False),
        ("^a", "ab", True),
        ("a$", "ab", False),
        ("^$", "", True),
        ("^$", "x", False),
        ("(^|,)b(,|$)", "a,b", True),
        ("[^a]", "a", False),
        ("a.c", "a\nc", False),
        ("[]x]", "]", True),
        ("[a-]", "-", True),
        (r"\.\/\\", r"./\ ", True),
        ("é+", "caféé", True),
    ],
)
def test_a_pattern_means_what_it_means_elsewhere(pattern: str, text: str, expected: bool) -> None:
    assert Pattern(pattern).found_in(text) is expected


def _patterns() -> st.SearchStrategy[str]:
    atoms = st.sampled_from(["a", "b", "1", " ", ".", "[ab]", "[^a]", "[a-b1]", r"\d", r"\w", r"\s", r"\D", r"\W"])
    counts = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,2}", "{2,}", "*?", "+?"])
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
            st.tuples(inner, counts).map(lambda two: f"({two[0]}){two[1]}"),
        ),
        max_leaves=8,
    )


@given(_patterns(), st.text("ab1 \n", max_size=8), st.booleans())
def test_a_pattern_finds_what_pythons_own_finds(pattern: str, text: str, ignore_case: bool) -> None:
    try:
        ours = Pattern(pattern, ignore_case=ignore_case)
    except InvalidValue:
        return  # too large
    expected = re.search(pattern, text, re.IGNORECASE if ignore_case else 0) is not None
    assert ours.found_in(text) is expected


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a+)+$", "a" * 1_000_000 + "b"),
        ("(a|a)+$", "a" * 1_000_000 + "b"),
        ("(a?){40}a{40}$", "a" * 1_000_000 + "b"),
        (".*.*.*.*.*=x", "=" * 1_000_000),
        ("(a|b)*a(a|b){60}c", "".join(random.Random(1).choices("ab", k=100_000))),
    ],
)
@pytest.mark.timeout(60)
def test_a_hostile_pattern_takes_time_in_proportion_to_the_text(pattern: str, text: str) -> None:
    assert not Pattern(pattern).found_in(text)


def test_a_pattern_that_multiplies_itself_is_refused() -> None:
    with pytest.raises(InvalidValue, match="invalid repetition size"):
        Pattern("((((a{9}){9}){9}){9}){9}")


def test_a_pattern_is_searched_in_the_whole_text() -> None:
    assert Pattern("b$").found_in("a" * 1_000_000 + "b")
    assert Pattern("b$").found_in("\ud800b")


@pytest.mark.parametrize(("flag", "expected"), [("", False), ("i", True)])
def test_case_matters_in_a_pattern_without_the_flag_i(flag: str, expected: bool) -> None:
    assert matches(f"error ~ /GRÖSSE [a-z]+/{flag}", error="größsE größse abc".replace("ß", "s")) is expected


# Any input.

_VALUES = st.sampled_from(
    ["5", "-1.5", "acme", '"a \\" b"', "'x'", "true", "null", "2h", "now", "2026-11-01T10:00Z", "/a+/i", "o-17"]
)
_FIELDS = st.sampled_from([*FIELDS, "attr.tenant", "attr.other", "$.order.total", "$.lines[0]", "$['a b']"])


def _filters() -> st.SearchStrategy[str]:
    condition = st.one_of(
        st.tuples(_FIELDS, st.sampled_from(["=", "!=", "<", ">=", "~"]), _VALUES).map(" ".join),
        st.tuples(_FIELDS, _VALUES, _VALUES).map(lambda three: f"{three[0]} in ({three[1]}, {three[2]})"),
        _FIELDS.map(lambda name: f"{name} exists"),
        _VALUES,
    )
    return st.recursive(
        condition,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from([" and ", " or ", " "]), inner).map("".join),
            inner.map(lambda operand: f"not {operand}"),
            inner.map(lambda operand: f"({operand})"),
        ),
        max_leaves=6,
    )


_BODIES = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "{}", "[]", "5", '"x"', "null", '{"order": 5}', '{"order": {"total": "x"}}', "[" * 5_000]),
)


@given(_filters(), _BODIES, st.sampled_from([Attribute("String", "5"), Attribute("Binary", b"\xff"), None]))
def test_every_filter_decides_every_message_and_reads_back_as_itself(
    text: str, body: str, tenant: Attribute | None
) -> None:
    try:
        parsed = parse(text)
    except FilterError:
        return  # such as `receives ~ x`
    dlq_message = message(body=body, attributes={} if tenant is None else {"tenant": tenant})
    decision = parsed.matches(dlq_message, NOW)
    again = parse(str(parsed))
    assert again == parsed
    assert again.matches(dlq_message, NOW) is decision
    assert parse(f"not ({text})").matches(dlq_message, NOW) is not decision


@given(st.text(max_size=40))
@example("\x00")
@example("error ~ /\ud800/")
@example("$[")
def test_any_text_is_a_filter_or_a_filter_error(text: str) -> None:
    try:
        parse(text).matches(message(), NOW)
    except FilterError as error:
        if not 0 <= error.position <= len(text):
            raise


@given(st.lists(st.tuples(_filters(), _filters()), min_size=1, max_size=1))
def test_and_or_follow_the_rules_of_logic(pairs: list[tuple[str, str]]) -> None:
    (first, second) = pairs[0]
    try:
        held = [parse(text).matches(message(), NOW) for text in (first, second)]
    except FilterError:
        return
    assert parse(f"({first}) and ({second})").matches(message(), NOW) is all(held)
    assert parse(f"({first}) or ({second})").matches(message(), NOW) is any(held)


def test_a_body_of_a_mebibyte_is_searched_to_its_end() -> None:
    large = message(body='{"order": {"total": 500}, "filling": "' + "x" * 1_048_000 + '"}')
    assert parse('$.order.total > 100 and body ~ /x"}$/ and not body ~ /y$/ and not nowhere').matches(large, NOW)


def test_messages_need_no_more_than_an_id_and_a_queue() -> None:
    bare = DeadLetterMessage("1", "q", "", 0.0, 0)
    for name in FIELDS:
        parse(f"{name} exists").matches(bare, NOW)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", None),
        ('error ~ "Read timeout" and $.total > 100', "timeout"),
        ("reason = rejected", "rejected"),
        ("error ~ /time.*out/", None),
        ("error ~ timeout or receives > 3", None),
        ("not error ~ timeout", None),
        ("error != timeout", None),
        ("error in (timeout, closed)", None),
        ("body ~ timeout", None),
        ("timeout", None),
        ("error ~ größe", None),
        ('error ~ "a: b"', None),
        ("receives > 3 and (error ~ short and error ~ longest)", "longest"),
    ],
)
def test_a_word_that_all_which_match_must_have(text: str, word: str | None) -> None:
    assert parse(text).word == word
