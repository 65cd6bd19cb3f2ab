"""Builds the archives of a release and tests them as a user would install them; uploads nothing. For `make release`.

With --dry it also accepts a development version and uncommitted changes, to see whether a release would work.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from semel.version import __version__

ROOT: Final = Path(__file__).parents[1]
DIST: Final = ROOT / "dist"
_BIN: Final = Path(sys.executable).parent
_RELEASE: Final = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


def problems(version: str, changelog: str, changes: str, *, dry: bool) -> list[str]:
    """The reasons against a release. `changes`: the output of `git status --porcelain`."""
    reasons = []
    if not dry and not _RELEASE.fullmatch(version):
        reasons.append(f"{version} is not the version of a release, such as 0.1.0 or 0.1.0rc1: src/semel/version.py")
    if not dry and changes.strip():
        reasons.append(f"the tree has changes that are not committed:\n{changes.rstrip()}")
    headings = [version] if _RELEASE.fullmatch(version) else [version, "Unreleased"]
    if not any(re.search(rf"^## {re.escape(heading)}(\s|$)", changelog, re.MULTILINE) for heading in headings):
        reasons.append(f"CHANGELOG.md has no section for this version: ## {headings[-1]}")
    return reasons


def reminders(version: str, data: Path = ROOT / "tests" / "upgrade" / "data") -> list[str]:
    """What does not prevent a release, but should be done before it."""
    if (data / version).is_dir():
        return []
    return [
        f"reminder: tests/upgrade/data has no folder {version}, so no test will hold that later versions read what "
        "this one writes. Add it: PYTHONPATH=tests .venv/bin/python -m upgrade.make"
    ]


def build() -> tuple[Path, Path]:
    """Build the wheel and the source archive. The wheel is built from the source archive, so neither misses a file."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(_BIN / "uv", "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", DIST, ROOT)
    (wheel,), (source,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return wheel, source


def try_out(wheel: Path, version: str) -> None:
    """Install the wheel as a user does, with the newest dependencies, and run it."""
    with tempfile.TemporaryDirectory(prefix="semel-release-") as folder:
        environment = Path(folder) / "environment"
        venv.create(environment, with_pip=True)
        run(environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        semel = environment / "bin" / "semel"
        said = subprocess.run([semel, "--version"], cwd=folder, check=True, capture_output=True, text=True).stdout
        if said != f"semel {version}\n":
            sys.exit(f"semel --version of {wheel.name} prints {said!r}, not {version}")
        print(said, end="", flush=True)
        run(semel, "demo", "handler", folder=folder)


def run(*command: str | Path, folder: str | Path = ROOT) -> None:
    code = subprocess.run(command, cwd=folder, check=False).returncode
    if code:
        sys.exit(f"exit code {code}: {' '.join(map(str, command))}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="also accept a development version and uncommitted changes")
    dry = parser.parse_args(arguments).dry
    status = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, check=True, capture_output=True, text=True)
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if reasons := problems(__version__, changelog, status.stdout, dry=dry):
        sys.exit("no release:\n" + "\n".join(f"- {problem}" for problem in reasons))
    for reminder in reminders(__version__):
        print(reminder, flush=True)
    wheel, source = build()
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, source)
    try_out(wheel, __version__)
    names = [path.relative_to(ROOT) for path in (wheel, source)]
    if dry:
        print(f"\nTried out: {names[0]} and {names[1]}. This was a dry run: do not upload them.")
    else:
        print(f"\nReady. To publish Semel {__version__}:\n")
        print(f"  git tag v{__version__} && git push origin v{__version__}")
        print(f"  {_BIN.relative_to(ROOT) if _BIN.is_relative_to(ROOT) else _BIN}/twine upload {names[0]} {names[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
