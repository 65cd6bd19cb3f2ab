"""The block `generated: imports` of docs/explanation/architecture.md, made from the contracts in pyproject.toml and
from the first sentence of each package: `python tests/docs/import_rules.py` writes it into the page.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "explanation" / "architecture.md"
BEGIN: Final = "<!-- generated: imports -->"
END: Final = "<!-- end of generated: imports -->"
_PACKAGE: Final = ROOT / "src" / "semel"
_ENTRANCE: Final = "__main__"  # `python -m semel`, which is not a package


def block(root: Path = ROOT) -> str:
    """The generated lines, without their markers."""
    return "\n".join(_lines(_contracts(root)))


def in_page(text: str) -> str:
    """The text between the markers in the page."""
    return text.partition(f"{BEGIN}\n")[2].partition(f"\n{END}")[0]


def _contracts(root: Path) -> list[dict[str, Any]]:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return contracts


def _lines(contracts: list[dict[str, Any]]) -> Iterator[str]:
    layers = [re.split(r"\s*[|:]\s*", layer) for layer in _top_layers(contracts)]
    packages = [name for layer in layers for name in layer if (_PACKAGE / name).is_dir()]
    yield "| folder in `src/semel/` | what it is | may import |"
    yield "|---|---|---|"
    for name in packages:
        below = [_allowed(name, other, contracts) for other in _below(name, layers) if other in packages]
        listed = ", ".join(filter(None, below)) or "none of these"
        yield f"| `{name}/` | {_first_sentence(_PACKAGE / name / '__init__.py')} | {listed} |"
    modules = [f"`{name}.py`" for layer in layers for name in layer if name not in packages]
    yield ""
    yield f"Every package may import the modules beside these folders: {', '.join(modules)}."
    yield ""
    yield "The contracts, as `lint-imports` checks them:"
    yield ""
    for contract in contracts:
        yield f"- {contract['name']}{_details(contract)}."


def _top_layers(contracts: list[dict[str, Any]]) -> list[str]:
    (layers,) = [contract["layers"] for contract in contracts if contract.get("containers") == ["semel"]]
    return [layer for layer in layers if layer != _ENTRANCE]


def _below(name: str, layers: list[list[str]]) -> list[str]:
    (level,) = [number for number, layer in enumerate(layers) if name in layer]
    return [other for layer in layers[level + 1 :] for other in layer]


def _allowed(importer: str, imported: str, contracts: list[dict[str, Any]]) -> str:
    """The imported package as the table shows it; empty if a contract protects it from this importer."""
    protected = [c for c in contracts if f"semel.{imported}" in c.get("protected_modules", ())]
    allowed = [name for contract in protected for name in contract["allowed_importers"]]
    if not protected or f"semel.{importer}" in allowed:
        return f"`{imported}`"
    return f"`{imported}` (in part)" if any(name.startswith(f"semel.{importer}.") for name in allowed) else ""


def _details(contract: dict[str, Any]) -> str:
    modules = [name for name in contract.get("allowed_importers", ()) if name.count(".") > 1]
    return f" ({', '.join(f'`{name}`' for name in modules)})" if modules else ""


def _first_sentence(module: Path) -> str:
    text = " ".join((ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", text)[0].rstrip(".")


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(f"{BEGIN}\n")
    PAGE.write_text(f"{before}{BEGIN}\n{block()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
