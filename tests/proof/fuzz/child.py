"""Runs one target under atheris, in a process of its own. Semel's modules are instrumented as they are imported.

python -m fuzz.child TARGET SECONDS FOLDER
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from fuzz import table
from fuzz.strategies import ODD, words

MAX_LENGTH = 6_000  # bytes of an input
ONE_INPUT_SECONDS = 10
MEMORY_MB = 2_500


def main(name: str, seconds: int, folder: Path) -> None:
    os.environ["SEMEL_STATE"] = tempfile.mkdtemp(prefix="semel-fuzz-state-")
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=["semel"], enable_loader_override=False):
        run = table.target(name)
    corpus, failures = folder / "corpus" / name, folder / "failures" / name
    for place in (corpus, failures):
        place.mkdir(parents=True, exist_ok=True)
    dictionary = folder / f"{name}.dict"
    dictionary.write_text(_dictionary([*ODD, *words(table.seeds(name))]), encoding="ascii")
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_LENGTH}",
        f"-timeout={ONE_INPUT_SECONDS}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-artifact_prefix={failures}/",
        f"-dict={dictionary}",
        "-print_final_stats=1",
        "-len_control=0",
        "-reload=0",
    ]
    # libFuzzer writes inputs that reach new code to the first folder.
    folders = [
        str(corpus),
        *(str(place / name) for place in (table.CORPUS, table.REGRESSIONS) if (place / name).is_dir()),
    ]
    atheris.Setup([name, *options, *folders], run)
    atheris.Fuzz()


def _dictionary(entries: list[bytes]) -> str:
    """A dictionary in libFuzzer's format: short entries only, every byte escaped."""
    short = [entry for entry in entries if len(entry) <= 64]
    return "".join('"' + "".join(f"\\x{byte:02x}" for byte in entry) + '"\n' for entry in short)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
