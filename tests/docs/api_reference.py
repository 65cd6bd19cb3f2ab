"""The block `generated: api` of docs/reference/api.md, made from the names in `__all__`, their signatures and
docstrings: `python tests/docs/api_reference.py` writes it into the page.

Code in docstrings becomes `text` blocks, because all other blocks of a page are executed; docstrings have their own
test.
"""

from __future__ import annotations

import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, ForwardRef

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
BEGIN: Final = "<!-- generated: api -->"
END: Final = "<!-- end of generated: api -->"
MODULES: Final = ("semel", "semel.ledger", "semel.sqs", "semel.testing", "semel.broker")
# Names that are public in Python, but only for other packages of Semel.
INTERNAL: Final = {
    "App": "announce client configured_ledger connect_to driven_by ledger ledger_name log_to prepare profile "
    "queue_setups start tools use_ledger",
    "Cancel": "begin end",
    "Client": "chance encoded exchange forget misses pause perform",
    "Entry": "unsendable wire",
    "Queue": "set_url",
    "Received": "from_wire",
}
_WIDTH: Final = 100
_CODE: Final = re.compile(r"(`[^`]*`)")


def block() -> str:
    """The generated lines, without their markers."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(_lines())).strip()


def in_page(text: str) -> str:
    """The text between the markers in the page."""
    return text.partition(f"{BEGIN}\n")[2].partition(f"\n{END}")[0]


def public_names(module: ModuleType) -> list[str]:
    """Names that need an extra are public too, but not in `__all__`. Without `__all__`: the names of the contract."""
    if not hasattr(module, "__all__"):
        return public_names(_contract(module))
    names = {*module.__all__, *getattr(module, "_EXTRAS", ())}
    return sorted((name for name in names if not name.startswith("_")), key=lambda name: (name.lower(), name))


def _contract(module: ModuleType) -> ModuleType:
    contract = import_module(f"{module.__name__}.contract")
    defined = [name for name, value in vars(contract).items() if _is_own_class(value, contract)]
    listed = ModuleType(contract.__name__, contract.__doc__)
    listed.__dict__.update({name: getattr(contract, name) for name in defined}, __all__=defined)
    return listed


def _is_own_class(value: object, module: ModuleType) -> bool:
    return isinstance(value, type) and value.__module__ == module.__name__


def _lines() -> Iterator[str]:
    modules = [import_module(name) for name in MODULES]
    modules = [module if hasattr(module, "__all__") else _contract(module) for module in modules]
    public = {getattr(module, name) for module in modules for name in public_names(module) if _is_class(module, name)}
    shown: dict[int, str] = {}
    where: dict[int, ModuleType] = {}
    for module in modules:
        yield from (f"## {module.__name__}", "", _first_paragraph(inspect.getdoc(module) or ""), "")
        for name in public_names(module):
            value = getattr(module, name)
            first = shown.setdefault(id(value), name)
            if first != name:
                yield from (f"### {name}", "", f"Another name of [`{first}`](#{first.lower()}).", "")
            elif module is not where.setdefault(id(value), module):
                yield from (f"[`{name}`](#{name.lower()}) is described above.", "")
            else:
                yield from _described(name, value, public)


def _is_class(module: ModuleType, name: str) -> bool:
    return isinstance(getattr(module, name), type)


def _described(name: str, value: object, public: set[type]) -> Iterator[str]:
    yield from (f"### {name}", "")
    if isinstance(value, type):
        bases = [base.__name__ for base in value.__mro__[1:] if base in public]
        if _has_signature(value):
            yield from _fenced(_call(name, value, result=False))
        if bases:
            yield from (f"A kind of {', '.join(f'[`{base}`](#{base.lower()})' for base in bases[:1])}.", "")
        yield from _prose(_own_doc(value))
        if issubclass(value, enum.Enum):
            yield from (*(f"- `{member.name}`: `{member.value!r}`" for member in value), "")
        yield from _members(value, public)
    elif callable(value):
        yield from _fenced(_call(name, value))
        yield from _prose(inspect.getdoc(value) or "")
    elif isinstance(value, (tuple, frozenset, list)):
        items = sorted(value) if isinstance(value, frozenset) else value
        yield from (", ".join(f"`{item}`" for item in items), "")
    else:
        yield from _fenced(f"{name} = {_plain(str(value))}")


def _members(kind: type, public: set[type]) -> Iterator[str]:
    """Properties as a list, then methods, each under its own heading; without members of public base classes."""
    hidden = INTERNAL.get(kind.__name__, "").split()
    inherited = {name for base in kind.__mro__[1:] if base in public for name in dir(base)}
    members: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__.split(".")[0] == "semel" and (base is kind or base not in public):
            members = {**{name: value for name, value in vars(base).items() if _is_member(name, value)}, **members}
    members = {name: value for name, value in members.items() if name not in hidden}
    members = {name: value for name, value in members.items() if name not in inherited or _raw_doc(value)}
    attributes = {name: value for name, value in members.items() if isinstance(value, property)}
    for name, value in attributes.items():
        result = _plain(inspect.signature(value.fget).return_annotation) if value.fget else ""
        doc = " ".join(_escaped(_raw_doc(value)).split())
        yield f"- `{name}`{f', `{result}`' if result else ''}{f': {doc}' if doc else ''}"
    if attributes:
        yield ""
    for name, value in members.items():
        if name not in attributes:
            yield from (f"#### {kind.__name__}.{name}", "")
            method = getattr(value, "__func__", value)
            yield from _fenced(_call(name, method, bound=not isinstance(value, staticmethod)))
            yield from _prose(_raw_doc(value))


def _is_member(name: str, value: object) -> bool:
    """A function that is only the default value of an attribute, such as a clock, is not a member."""
    if inspect.isfunction(value):
        return not name.startswith("_") and value.__name__ == name
    return not name.startswith("_") and isinstance(value, (property, classmethod, staticmethod))


def _raw_doc(value: Any) -> str:
    return inspect.cleandoc(getattr(value, "__func__", value).__doc__ or "")


def _own_doc(kind: type) -> str:
    """The docstring, without those that dataclasses and named tuples generate."""
    doc = inspect.cleandoc(kind.__dict__.get("__doc__") or "")
    return "" if doc.startswith(f"{kind.__name__}(") else doc


def _has_signature(kind: type) -> bool:
    """Whether users call its constructor: not for plain exceptions, enumerations and abstract classes."""
    own = any("__init__" in vars(base) or "__new__" in vars(base) for base in kind.__mro__ if _is_ours(base))
    made = own or hasattr(kind, "__struct_fields__")
    return made and not issubclass(kind, enum.Enum) and not inspect.isabstract(kind)


def _is_ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "semel"


def _call(name: str, value: Any, *, result: bool = True, bound: bool = False) -> str:
    signature = inspect.signature(value)
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    parts: list[str] = []
    star = False
    for number, parameter in enumerate(parameters):
        if parameter.kind is parameter.VAR_POSITIONAL:
            star = True
        elif parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        parts.append(_parameter(parameter))
        after = parameters[number + 1] if number + 1 < len(parameters) else None
        if parameter.kind is parameter.POSITIONAL_ONLY and (after is None or after.kind is not parameter.kind):
            parts.append("/")
    end = ""
    if result and signature.return_annotation not in (signature.empty, None, "None"):
        end = f" -> {_plain(signature.return_annotation)}"
    line = f"{name}({', '.join(parts)}){end}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){end}"])


def _parameter(parameter: inspect.Parameter) -> str:
    text = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        text = f"{'*' if parameter.kind is parameter.VAR_POSITIONAL else '**'}{text}"
    if parameter.annotation is not parameter.empty:
        text += f": {_plain(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += f"{' = ' if ':' in text else '='}{_default(parameter.default)}"
    return text


def _default(value: object) -> str:
    """The default value without memory addresses, so that it is the same in every process."""
    if isinstance(value, enum.Enum):
        return str(value) if isinstance(value, str) else f"{type(value).__name__}.{value.name}"
    if inspect.isroutine(value) or isinstance(value, type):
        return value.__name__
    text = repr(value)
    return "…" if " at 0x" in text or text.startswith("<") else text


def _plain(annotation: object) -> str:
    """A type as it is written in code, without module names."""
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    text = annotation if isinstance(annotation, str) else str(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", text)


def _fenced(text: str) -> Iterator[str]:
    yield from ("```text", text, "```", "")


def _prose(doc: str) -> Iterator[str]:
    """A docstring as Markdown: its paragraphs as they are, its examples as blocks."""
    lines = doc.splitlines()
    while lines:
        line = lines.pop(0)
        if line.lstrip().startswith("```"):
            code = []
            while lines and not lines[0].lstrip().startswith("```"):
                code.append(lines.pop(0))
            lines = lines[1:]
        elif line.lstrip().startswith(">>>") or line.startswith("    "):
            code = [line]
            while lines and (_continues(lines) or (lines[0].strip() and line.lstrip().startswith(">>>"))):
                code.append(lines.pop(0))
        else:
            yield _escaped(re.sub(r"::$", ":", line))
            continue
        yield from ("", *_fenced(textwrap.dedent("\n".join(code)).strip("\n")))
    if doc:
        yield ""


def _continues(lines: list[str]) -> bool:
    """Whether an indented block continues, also after empty lines."""
    following = next((line for line in lines if line.strip()), "")
    return following.startswith("    ")


def _escaped(text: str) -> str:
    """Escape what Markdown would read as HTML or emphasis outside of code."""
    parts = _CODE.split(text)
    parts[::2] = [part.replace("<", "&lt;").replace("*", r"\*") for part in parts[::2]]
    return "".join(parts)


def _first_paragraph(doc: str) -> str:
    return _escaped(" ".join(doc.split("\n\n")[0].split()))


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(f"{BEGIN}\n")
    PAGE.write_text(f"{before}{BEGIN}\n{block()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
