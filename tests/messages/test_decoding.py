"""From body to argument: by annotation, with orjson, msgspec or pydantic; and short reasons for what does not fit."""

from __future__ import annotations

import enum
import inspect
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal, NewType, Optional, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from semel.errors import SemelError
from semel.messages.decoder import Decoder, Undecodable, decoder_for


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


OrderId = NewType("OrderId", str)


@dataclass
class Line:
    sku: str
    amount: int = 1


@dataclass
class Order:
    id: OrderId
    total: float
    lines: list[Line]
    size: Size = Size.SMALL
    kind: Literal["new", "again"] = "new"
    note: Optional[str] = None  # noqa: UP045
    placed: datetime | None = None
    due: date | None = None
    price: Decimal = Decimal(0)
    customer: UUID | None = None
    tags: set[str] = field(default_factory=set)
    extra: dict[str, Any] = field(default_factory=dict)
    place: tuple[float, float] = (0.0, 0.0)
    numbers: tuple[int, ...] = ()
    either: int | str = 0


@dataclass
class Tree:
    name: str
    children: list[Tree]


@dataclass
class Picky:
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise LookupError("secret text")


class OrderDict(TypedDict):
    id: str
    total: float


class OrderStruct(msgspec.Struct):
    id: str
    total: float


class OrderModel(pydantic.BaseModel):
    id: str
    total: float = pydantic.Field(gt=0)
    lines: list[Line] = []


@dataclass
class HoldsModel:
    order: OrderModel


FULL = (
    '{"id": "o-1", "total": 3, "lines": [{"sku": "a", "amount": 2}, {"sku": "b"}], "size": "l", "kind": "again",'
    ' "note": "x", "placed": "2026-01-02T03:04:05+00:00", "due": "2026-01-02", "price": "1.10", "tags": ["t"],'
    ' "customer": "12345678-1234-5678-1234-567812345678", "extra": {"a": [1]}, "place": [1.5, 2], "numbers": [1, 2],'
    ' "either": "y", "unknown": 1}'
)
EXPECTED = Order(
    OrderId("o-1"), 3.0, [Line("a", 2), Line("b")], Size.LARGE, "again", "x", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    date(2026, 1, 2), Decimal("1.10"), UUID("12345678-1234-5678-1234-567812345678"), {"t"}, {"a": [1]}, (1.5, 2.0),
    (1, 2), "y",
)  # fmt: skip


@pytest.mark.parametrize("annotation", [dict, dict[str, Any], Any, object, inspect.Parameter.empty])
def test_a_dict_or_no_annotation_takes_the_body_as_json(annotation: Any) -> None:
    assert decoder_for(annotation)('{"a": [1, null]}') == {"a": [1, None]}


def test_any_takes_every_json_value_but_dict_and_list_only_their_own() -> None:
    assert decoder_for(Any)("7") == 7
    assert decoder_for(list)("[1]") == [1]
    with pytest.raises(Undecodable, match="expected a JSON object, got a list"):
        decoder_for(dict)("[1]")
    with pytest.raises(Undecodable, match="expected a JSON list, got null"):
        decoder_for(list)("null")


def test_str_takes_the_body_and_bytes_its_utf8() -> None:
    assert decoder_for(str)("héllo {") == "héllo {"
    assert decoder_for(bytes)("héllo {") == "héllo {".encode()


def test_a_dataclass_is_made_with_all_that_is_in_it() -> None:
    assert decoder_for(Order)(FULL) == EXPECTED
    assert type(decoder_for(Order)(FULL).total) is float


def test_defaults_stand_for_what_the_body_leaves_out() -> None:
    assert decoder_for(Order)('{"id": "o", "total": 1.5, "lines": []}') == Order(OrderId("o"), 1.5, [])


def test_a_dataclass_may_hold_itself() -> None:
    made = decoder_for(Tree)('{"name": "a", "children": [{"name": "b", "children": []}]}')
    assert made == Tree("a", [Tree("b", [])])
    with pytest.raises(Undecodable):
        decoder_for(Tree)('{"name": "a", "children": [{"name": 1, "children": []}]}')


def test_lists_and_unions_of_dataclasses_are_possible() -> None:
    assert decoder_for(list[Line])('[{"sku": "a"}]') == [Line("a")]
    assert decoder_for(Line | None)("null") is None
    assert decoder_for(dict[str, Line])('{"x": {"sku": "a"}}') == {"x": Line("a")}


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ('{"sku": 7}', "sku"), ('{"sku": "a", "amount": "2"}', "amount"), ('{"sku": "a", "amount": 1.5}', "amount"),
        ('{"sku": "a", "amount": true}', "amount"), ('{"sku": "a", "amount": null}', "amount"), ("{}", "sku"),
        ("[]", "bject"),
    ],
)  # fmt: skip
def test_a_dataclass_takes_nothing_that_does_not_fit_and_says_where(body: str, where: str) -> None:
    with pytest.raises(Undecodable, match=where):
        decoder_for(Line)(body)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size", '"xl"'), ("kind", '"old"'), ("placed", '"today"'), ("due", '"2026-13-01"'), ("price", '"cheap"'),
        ("customer", '"me"'), ("tags", '"t"'), ("extra", "[]"), ("place", "[1]"), ("numbers", '["1"]'),
        ("either", "1.5"), ("lines", '[{"sku": 1}]'), ("note", "1"),
    ],
)  # fmt: skip
def test_each_kind_of_field_refuses_what_is_not_of_its_kind(name: str, value: str) -> None:
    with pytest.raises(Undecodable, match=name):
        decoder_for(Order)(f'{{"id": "o", "total": 1, "lines": [], "{name}": {value}}}')


def test_a_dataclass_that_refuses_its_fields_makes_the_message_undecodable() -> None:
    with pytest.raises(Undecodable, match="LookupError") as caught:
        decoder_for(Picky)('{"number": -1}')
    assert "secret" not in str(caught.value)


ALL: list[tuple[str, Decoder]] = [
    ("json", decoder_for(Any)), ("dict", decoder_for(dict)), ("msgspec", decoder_for(Line)),
    ("pydantic", decoder_for(OrderModel)),
]  # fmt: skip


@pytest.mark.parametrize("decode", [decode for _, decode in ALL], ids=[name for name, _ in ALL])
@pytest.mark.parametrize(
    "body", ["", "{", "secret words", '{"sku": "a"} x', "\ud800", '{"sku": "\ud800"}', "[" * 100_000]
)
def test_what_is_not_json_is_undecodable_and_no_reason_quotes_it(decode: Decoder, body: str) -> None:
    with pytest.raises(Undecodable) as caught:
        decode(body)
    assert "secret" not in str(caught.value)
    assert len(caught.value.reason) <= 300
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__, "a logged traceback must not show what pydantic tells of the input"


def test_bytes_of_a_body_that_is_no_unicode_are_undecodable() -> None:
    with pytest.raises(Undecodable, match="Unicode"):
        decoder_for(bytes)("\ud800")


def test_a_struct_and_a_typed_dict_are_decoded_by_msgspec() -> None:
    assert decoder_for(OrderStruct)('{"id": "o", "total": 1}') == OrderStruct("o", 1.0)
    assert decoder_for(OrderDict)('{"id": "o", "total": 1.5}') == {"id": "o", "total": 1.5}
    assert decoder_for(OrderStruct | None)("null") is None
    with pytest.raises(Undecodable, match="total"):
        decoder_for(OrderDict)('{"id": "o"}')


def test_a_pydantic_model_and_whatever_holds_one_is_decoded_by_pydantic() -> None:
    expected = OrderModel(id="o", total=1.5, lines=[Line("a")])
    body = '{"id": "o", "total": 1.5, "lines": [{"sku": "a"}]}'
    assert decoder_for(OrderModel)(body) == expected
    assert decoder_for(list[OrderModel])(f"[{body}]") == [expected]
    assert decoder_for(OrderModel | None)("null") is None
    assert decoder_for(HoldsModel)(f'{{"order": {body}}}') == HoldsModel(expected)
    assert decoder_for(pydantic.TypeAdapter(dict[str, int]))('{"a": 1}') == {"a": 1}


def test_a_pydantic_refusal_says_where_and_why_without_the_input() -> None:
    with pytest.raises(Undecodable) as caught:
        decoder_for(OrderModel)('{"id": "secret", "total": -31415}')
    assert caught.value.reason == "Input should be greater than 0 - at $.total"
    with pytest.raises(Undecodable, match="and 1 more"):
        decoder_for(list[OrderModel])("[1, 2, 3, 4]")


class Plain:
    pass


@dataclass
class HoldsPlain:
    plain: Plain


@dataclass
class HoldsUnknown:
    other: Nowhere  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    "annotation",
    [Plain, HoldsPlain, HoldsUnknown, list[Plain], threading.Thread, "Order", None, Line | Order, type, 7],
    ids=str,
)
def test_an_annotation_that_cannot_be_is_refused_when_the_handler_is_made(annotation: Any) -> None:
    with pytest.raises(SemelError, match=r"a handler cannot have a message of type .*; use dict|use dict"):
        decoder_for(annotation)


def test_pydantic_says_at_once_what_it_cannot_make() -> None:
    with pytest.raises(SemelError, match="use dict"):
        decoder_for(OrderModel | Plain)


def test_libraries_are_imported_only_where_an_annotation_needs_them() -> None:
    program = """
import sys
from semel.messages.decoder import decoder_for
from typing import Any
assert [decoder_for(one)('{}') for one in (dict, str, bytes, Any)] == [{}, '{}', b'{}', {}]
print(sorted({'msgspec', 'pydantic'} & set(sys.modules)))
"""
    assert _run(program) == "[]"


def _run(program: str) -> str:
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()
