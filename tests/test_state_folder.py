"""The state folder: where it is, and who may read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.errors import SemelError
from semel.state_folder import state_folder


def test_the_state_folder_is_where_the_user_says_and_is_nobody_elses_to_read(tmp_path: Path) -> None:
    wanted = tmp_path / "own" / "place"
    folder = state_folder({"SEMEL_STATE": str(wanted), "XDG_STATE_HOME": "/nowhere"})
    assert folder == wanted
    assert folder.stat().st_mode & 0o777 == 0o700


def test_without_a_word_it_is_where_the_system_keeps_state(tmp_path: Path) -> None:
    assert state_folder({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "semel"
    assert state_folder({"HOME": str(tmp_path)}) == tmp_path / ".local" / "state" / "semel"
    assert state_folder({"HOME": str(tmp_path), "XDG_STATE_HOME": "relative"}) == tmp_path / ".local/state/semel"


def test_a_folder_that_cannot_be_made_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SemelError, match=r"file/state cannot be created: .*set SEMEL_STATE"):
        state_folder({"SEMEL_STATE": str(tmp_path / "file" / "state")})


def test_the_home_of_a_user_that_does_not_exist_is_a_name_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert state_folder({"SEMEL_STATE": "~nobody-of-this-name"}).resolve() == tmp_path / "~nobody-of-this-name"
