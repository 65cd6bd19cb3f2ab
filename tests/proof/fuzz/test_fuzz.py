"""Runs every target with its examples, with the inputs that once broke something, and with many changed examples."""

from __future__ import annotations

import inspect
from time import monotonic

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import suite
from fuzz import table
from fuzz.strategies import inputs

# Targets that open a database or a broker for each input get fewer of them.
SLOW = {"http", "calls", "attempt_log", "foreign_log", "log_mapping", "ledger_file", "broker_file", "pipeline_file"}


@pytest.mark.parametrize("name", table.NAMES)
def test_every_target_holds_for_changed_examples(name: str) -> None:
    target, few = table.target(name), name in SLOW
    count = suite.effort(fast=2 if few else 12, full=50 if few else 300)

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=count < 100,  # few inputs are the same each time; many are new ones each time
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(name))
    def run(data: bytes) -> None:
        target(data)

    run()


@pytest.mark.parametrize("name", table.NAMES)
def test_every_target_holds_for_its_examples_and_for_what_once_broke_something(name: str) -> None:
    target, began = table.target(name), monotonic()
    for data in table.seeds(name):
        target(data)
    assert monotonic() - began < 30


@pytest.mark.parametrize("name", table.NAMES)
def test_every_target_says_what_must_hold_and_has_examples(name: str) -> None:
    assert inspect.getdoc(table.target(name))
    assert table.files(table.CORPUS / name)


def test_every_folder_of_inputs_belongs_to_a_target() -> None:
    folders = [folder.name for place in (table.CORPUS, table.REGRESSIONS) for folder in place.iterdir()]
    assert set(folders) <= set(table.NAMES)


def test_every_function_that_fuzzes_is_in_the_table() -> None:
    modules = {inspect.getmodule(table.target(name)) for name in table.NAMES}
    functions = {name for module in modules for name in vars(module) if name.startswith("fuzz_")}
    assert functions == {f"fuzz_{name}" for name in table.NAMES}


@given(st.data())
@settings(max_examples=20, deadline=None, database=None, derandomize=True)
def test_changed_examples_are_bytes_of_a_bounded_length(data: st.DataObject) -> None:
    assert len(data.draw(inputs("filter"))) < 200_000
