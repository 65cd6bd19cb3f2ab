"""The drawings in docs/explanation/failures.md are what its script draws, and the page shows all of them."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final
from xml.etree import ElementTree

import pytest

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs" / "images" / "failures"
PAGE: Final = (ROOT / "docs" / "explanation" / "failures.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def draw() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("draw_failures", FOLDER / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_drawings_are_what_the_script_draws(draw: ModuleType) -> None:
    drawn = draw.drawings()
    kept = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.svg")}
    assert sorted(kept) == sorted(drawn)
    changed = [name for name in drawn if kept[name] != drawn[name]]
    assert not changed, f"run python docs/images/failures/draw.py: {', '.join(changed)}"


def test_the_page_shows_every_drawing(draw: ModuleType) -> None:
    shown = re.findall(r"\]\(\.\./images/failures/([\w-]+\.svg)\)", PAGE)
    assert sorted(shown) == sorted(draw.drawings())


def test_every_drawing_is_xml_with_a_title_and_a_description(draw: ModuleType) -> None:
    for name, svg in draw.drawings().items():
        root = ElementTree.fromstring(svg)
        for tag in ("title", "desc"):
            assert root.findtext(f"{{http://www.w3.org/2000/svg}}{tag}"), f"{name} has no {tag}"


def test_a_label_that_does_not_fit_is_refused(draw: ModuleType) -> None:
    story = draw.Story("long", "Long", ("SQS", "worker"), (draw.Call("SQS", "worker", "a message with a long label"),))
    with pytest.raises(draw.DoesNotFit, match="a message with a long label"):
        draw.drawing(story)


def test_every_test_that_the_page_names_is_named_by_the_guarantees() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    promised = set(
        re.findall(r"`(test_\w+)`", (ROOT / "docs" / "explanation" / "guarantees.md").read_text(encoding="utf-8"))
    )
    assert len(named) >= 7
    assert named <= promised, sorted(named - promised)
