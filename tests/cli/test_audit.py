"""`semel audit` and `semel annotate`: records of this user, which need no endpoint."""

from __future__ import annotations

import pytest

from cli.shell import Shell


def test_annotate_adds_an_annotation_and_audit_has_it(shell: Shell) -> None:
    assert shell("annotate", "deployed 1.4.2").out.endswith("UTC  deployed 1.4.2\n")
    assert shell("annotate", "again", "--output", "json").json["text"] == "again"
    empty = shell("annotate", " ")
    assert (empty.code, "it is empty" in empty.err) == (2, True)
    assert "deployed 1.4.2" in shell("audit").out
    newest, _ = shell("audit", "--where", "outcome = done", "--output", "json").json
    assert (newest["action"], newest["details"]) == ("annotate", {"text": "again"})
    assert shell("audit", "--where", "outcome = done", "--limit", "1", "--output", "jsonl").lines == [newest]


@pytest.mark.parametrize("command", [["audit"], ["annotate", "deployed"], ["jobs", "list"]])
def test_records_need_no_aws_configuration(shell: Shell, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for option in ("--endpoint-url", "--region", "--profile"):
        ran = shell(*command, option, "http://127.0.0.1:1")
        assert (ran.code, f"unrecognized arguments: {option}" in ran.err) == (2, True)
    for name in ("AWS_ENDPOINT_URL_SQS", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_PROFILE", "there-is-none")
    assert shell(*command).code == 0
