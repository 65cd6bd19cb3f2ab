"""The filter language: what its words mean, what it says of a mistake, and that nothing in a letter can upset it."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlq.dead_letters import NOW, message
from semel.dlq import fingerprints
from semel.dlq.filter.fields import FIELDS
from semel.dlq.filter.lexer import EXAMPLE
from semel.dlq.filter.parser import FilterError, parse
from semel.dlq.filter.patterns import MAX_LOOKED_AT, Pattern, PatternError
from semel.dlq.messages import DeadLetterMessage
from semel.sqs.client.messages import Attribute


def matches(text: str, **known: Any) -> bool:
    return parse(text).matches(message(**known), NOW)


TRUE = (
    "",
    "   ",
    "timeout",
    "TIMEOUT acme-is-not-looked-for or o-17",
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
def test_what_holds_for_the_letter_matches(text: str) -> None:
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


def test_a_letter_that_sqs_moved_has_no_error() -> None:
    moved: dict[str, Any] = {"error": "", "reason": "", "key": "", "by_semel": False}
    assert not matches("error exists", **moved)
    assert not matches("error != timeout", **moved)
    assert matches("not error exists", **moved)


def test_a_fingerprint_finds_all_errors_of_its_kind() -> None:
    print_ = fingerprints.of(message())
    assert matches(f"fingerprint = {print_}", error="reading from 'shop' timed out after 45 s")
    assert not matches(f"fingerprint = {print_}", error="reading from 'shop' was refused")


def test_numbers_that_no_float_can_hold_are_told_apart() -> None:
    assert matches("$.id = 12345678901234567", body='{"id": 12345678901234567}')
    assert not matches("$.id = 12345678901234567", body='{"id": 12345678901234568}')


@pytest.mark.parametrize(
    ("text", "needs"),
    [("", False), ("error ~ x", False), ("word", True), ("body ~ x", True), ("receives = 1 or not $.a = 1", True)],
)
def test_a_filter_knows_whether_it_needs_the_body(text: str, needs: bool) -> None:
    assert parse(text).needs_body is needs


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("eror ~ timeout", 0, "did you mean error?"),
        ("receives = 3 and foo > 3", 17, "there is no field 'foo'; there are error,"),
        ("receives > many", 11, "receives is a number"),
        ("age > soon", 6, "is no duration; write age > 2h"),
        ("sent > yesterday", 7, "is no time; write sent >= 2026-11-01T10:00Z"),
        ("sent > 2h", 7, "-2h for two hours ago"),
        ("size > big", 7, "size > 1000 or > 64k"),
        ("error > a", 8, "error is a text"),
        ("receives ~ 3", 11, "receives is a number: compare it with ="),
        ("error = /a/", 8, "error ~ /a/"),
        ("receives =", 10, "a value is missing here"),
        ("receives = and", 11, "a value is missing here"),
        ("(receives = 3", 0, "this ( is not closed"),
        ("receives = 3)", 12, "this ) has no ( before it"),
        ("= 3", 0, "before it belongs a field"),
        ("and", 0, "cannot stand here"),
        ("a or", 4, "a condition is missing here"),
        ('error ~ "open', 8, "this quote is not closed"),
        ("!error", 0, "! stands only in !="),
        ("error ~ /(a/", 9, "this ( is not closed"),
        ("error ~ /a(?=b)/", 10, "no looking around"),
        (r"error ~ /(a)\1/", 12, r"\1 cannot be used"),
        ("error ~ /a/gx", 8, "behind a pattern stands i or nothing"),
        ("error in a", 9, "behind `in` stands a list"),
        ("error in (a b)", 12, "goes on with ,"),
        ("$.a", 0, "say what about it"),
        ("(" * 60 + "a" + ")" * 60, 50, "at most 50 deep"),
        ("not " * 60 + "a", 200, "at most 50 deep"),
        ("a" * 9_000, 8_000, "at most 8000 are read"),
    ],
)
def test_a_mistake_is_shown_with_its_place_and_a_way_out(text: str, place: int, says: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text)
    assert caught.value.position == place
    assert says in caught.value.problem
    lines = str(caught.value).splitlines()
    assert lines[2].index("^") - 2 == min(place, 60)
    assert lines[3].startswith("write it as, for example: ")


def test_the_examples_in_errors_are_filters() -> None:
    assert str(parse(EXAMPLE)) == EXAMPLE


# Patterns.


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
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
def test_a_pattern_means_what_it_means_elsewhere(pattern: str, text: str, found: bool) -> None:
    assert Pattern(pattern).found_in(text) is found


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
    except PatternError:
        return  # too large
    expected = re.search(pattern, text, re.IGNORECASE if ignore_case else 0) is not None
    assert ours.found_in(text) is expected


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a+)+$", "a" * 60_000 + "b"),
        ("(a|a)+$", "a" * 60_000 + "b"),
        ("(a?){40}a{40}$", "a" * 60_000 + "b"),
        (".*.*.*.*.*=x", "=" * 60_000),
        ("(a|b)*a(a|b){60}c", "abbababaab" * 6_000),
    ],
)
@pytest.mark.timeout(60)
def test_a_hostile_pattern_takes_no_longer_than_the_text_is_long(pattern: str, text: str) -> None:
    assert not Pattern(pattern).found_in(text)


@pytest.mark.timeout(60)
def test_a_pattern_that_multiplies_itself_is_refused_or_small() -> None:
    Pattern("((((((){250}){250}){250}){250}){250}){250}")
    with pytest.raises(PatternError, match="too large"):
        Pattern("((((a{9}){9}){9}){9}){9}")


def test_the_end_of_a_text_that_was_cut_is_not_its_end() -> None:
    assert not Pattern("a$").found_in("a" * (MAX_LOOKED_AT + 1))
    assert Pattern("a$").found_in("a" * MAX_LOOKED_AT)


# Whatever comes.

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
            inner.map(lambda one: f"not {one}"),
            inner.map(lambda one: f"({one})"),
        ),
        max_leaves=6,
    )


_BODIES = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "{}", "[]", "5", '"x"', "null", '{"order": 5}', '{"order": {"total": "x"}}', "[" * 5_000]),
)


@given(_filters(), _BODIES, st.sampled_from([Attribute("String", "5"), Attribute("Binary", b"\xff"), None]))
def test_every_filter_decides_every_letter_and_reads_back_as_itself(
    text: str, body: str, tenant: Attribute | None
) -> None:
    try:
        parsed = parse(text)
    except FilterError:
        return  # such as `receives ~ x`
    one = message(body=body, attributes={} if tenant is None else {"tenant": tenant})
    found = parsed.matches(one, NOW)
    again = parse(str(parsed))
    assert again == parsed
    assert again.matches(one, NOW) is found
    assert parse(f"not ({text})").matches(one, NOW) is not found


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
    (one, other) = pairs[0]
    try:
        held = [parse(text).matches(message(), NOW) for text in (one, other)]
    except FilterError:
        return
    assert parse(f"({one}) and ({other})").matches(message(), NOW) is all(held)
    assert parse(f"({one}) or ({other})").matches(message(), NOW) is any(held)


def test_a_body_of_a_mebibyte_is_decided_at_once() -> None:
    large = message(body='{"order": {"total": 500}, "filling": "' + "x" * 1_048_000 + '"}')
    begun = time.process_time()
    assert parse("$.order.total > 100 and not body ~ /y$/ and not nowhere").matches(large, NOW)
    assert time.process_time() - begun < 30  # not a benchmark: only that it is not a matter of minutes


def test_letters_need_no_more_than_an_id_and_a_queue() -> None:
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
