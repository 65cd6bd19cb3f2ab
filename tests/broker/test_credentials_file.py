"""The broker's credentials file, which defines its users."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from signed_requests import ALICE, SECRET, accepted, signed, signed_at

from semel.broker.auth import Credentials, Verifier, user_id_of
from semel.broker.engine import Identity
from semel.errors import StartError


def credentials(folder: Path, text: str) -> Path:
    path = folder / "credentials"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_profile_with_a_key_pair_is_one_user(tmp_path: Path) -> None:
    path = credentials(
        tmp_path,
        f"""\ufeff
        # who may call
        [default]
        aws_access_key_id = {ALICE}
        aws_secret_access_key = {SECRET}

        [DEFAULT]
        AWS_ACCESS_KEY_ID=AKIDBOB
        aws_secret_access_key=100%(sure)s=;#
        aws_session_token = ignored

        [alice-again]
        aws_access_key_id = {ALICE}
        aws_secret_access_key = {SECRET}
        region = eu-west-1
        """.replace("        ", ""),
    )

    key_pairs = Credentials.load(path)

    assert key_pairs == {ALICE: SECRET, "AKIDBOB": "100%(sure)s=;#"}
    assert SECRET not in repr(key_pairs)
    assert accepted(signed(), by=Verifier(key_pairs)) == ALICE


def test_a_profile_says_its_account_and_user_id_or_gets_them(tmp_path: Path) -> None:
    pair = "aws_secret_access_key = s\naws_access_key_id"
    text = f"[a]\n{pair} = A\n[b]\n{pair} = B\naws_account_id = 111122223333\naws_user_id = AIDAB\n"
    by = Verifier(Credentials.load(credentials(tmp_path, text)), account="999988887777")

    def who(key: str) -> Identity:
        request = signed(key=(key, "s", None), region="eu-west-1")
        return by.verify(request, signed_at(request))

    assert who("B") == Identity("B", "111122223333", "AIDAB", "arn:aws:iam::111122223333:user/b", "eu-west-1")
    a = who("A")
    assert (a.account, a.arn, a.name) == ("999988887777", "arn:aws:iam::999988887777:user/a", "a")
    assert re.fullmatch("AIDA[A-Z2-7]{17}", a.user_id)


def test_a_user_id_is_stable_and_that_of_one_name_in_one_account() -> None:
    ids = {user_id_of(account, name) for account in ("111122223333", "444455556666") for name in ("a", "b")}
    assert len(ids) == 4
    assert user_id_of("111122223333", "a") == "AIDAQCQ3YAIL4HRXZ2G3J"


def test_the_operator_is_the_first_user_of_the_brokers_own_account(tmp_path: Path) -> None:
    pair = "aws_secret_access_key = s\naws_access_key_id"
    text = f"[a]\n{pair} = A\naws_account_id = 111122223333\n[b]\n{pair} = B\n"
    key_pairs = Credentials.load(credentials(tmp_path, text))

    assert key_pairs.operator("000000000000") == ("B", "s")
    assert key_pairs.operator("111122223333") == ("A", "s")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no profile has a key pair. Add"),
        ("[a]\nregion = x\n", "no profile has a key pair. Add"),
        (f"[a]\naws_secret_access_key = {SECRET}\n", "profile [a] has no aws_access_key_id. Add it"),
        ("[b]\naws_access_key_id = AKID\n", "profile [b] has no aws_secret_access_key. Add it"),
        (
            "[b]\naws_access_key_id = AKID\naws_secret_access_key =\n",
            "profile [b] has no aws_secret_access_key. Add it",
        ),
        (
            f"[c]\naws_access_key_id = a/b\naws_secret_access_key = {SECRET}\n",
            "profile [c] has an unusable aws_access_key",
        ),
        (
            f"[d]\naws_access_key_id=A\naws_secret_access_key=s\n[e]\naws_access_key_id=A\naws_secret_access_key={SECRET}\n",
            "profile [e] gives A another secret than a profile above. Remove one.",
        ),
        (
            f"[f]\naws_access_key_id=A\naws_secret_access_key={SECRET}\naws_account_id = 12345\n",
            "profile [f] has an unusable aws_account_id. An AWS account has 12 digits.",
        ),
        (
            f"[g]\naws_access_key_id=A\naws_secret_access_key={SECRET}\naws_user_id = AIDA 1\n",
            "profile [g] has an unusable aws_user_id. Use",
        ),
        (
            f"[h]\naws_access_key_id=A\naws_secret_access_key={SECRET}\n"
            f"[i]\naws_access_key_id=A\naws_secret_access_key={SECRET}\naws_account_id = 111122223333\n",
            "profile [i] puts A into another account than a profile above. Remove one.",
        ),
        (f"aws_secret_access_key = {SECRET}\n", "line 1 is not [profile] or key = value. Correct or remove it."),
        (f"[a]\n{SECRET}\n", "line 2 is not [profile] or key = value. Correct or remove it."),
        (f"[a]\nk = {SECRET}\n[a]\n", "line 3 repeats something in profile [a]. Correct or remove it."),
        (f"[a]\nk = 1\nk = {SECRET}\n", "line 3 repeats something in profile [a]. Correct or remove it."),
    ],
)
def test_a_file_that_leaves_a_user_in_doubt_is_refused_with_the_way_out(tmp_path: Path, text: str, says: str) -> None:
    path = credentials(tmp_path, text)

    with pytest.raises(StartError) as caught:
        Credentials.load(path)

    assert str(caught.value).startswith(f"{path}: {says}")
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_file_that_is_missing_or_unreadable_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, why in [("nowhere", "No such file"), ("", "Is a directory"), ("binary", "it is not UTF-8 text")]:
        with pytest.raises(StartError, match=re.escape(f"{tmp_path / name}: cannot read the credentials: {why}")):
            Credentials.load(tmp_path / name)
