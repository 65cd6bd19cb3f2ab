"""Queue policies alone: who may do what, by which statement and condition."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.engine.attributes import checked
from semel.broker.engine.identity import Access, Identity
from semel.broker.engine.queue_policy import Policy, Verdict, context_of
from semel.sqs.errors import ServiceError

QUEUE = "arn:aws:sqs:us-east-1:000000000000:orders"
ALICE = Identity("AKIDALICE", "111122223333", "AIDAALICE", "arn:aws:iam::111122223333:user/alice", "us-east-1")
CAROL = Identity("AKIDCAROL", "111122223333", "AIDACAROL", "arn:aws:iam::111122223333:user/carol", "us-east-1")
BOB = Identity("AKIDBOB", "444455556666", "AIDABOB", "arn:aws:iam::444455556666:user/bob", "us-east-1")
NOW = 1_784_000_000_000  # 2026-07-14T03:33:20Z
ALLOWED, DENIED, NO_MATCH = Verdict.ALLOWED, Verdict.DENIED, Verdict.NO_MATCH


def statement(effect: str = "Allow", **elements: Any) -> dict[str, Any]:
    """Everybody, everything; without the elements that are given as None."""
    usual = {"Principal": "*", "Action": "sqs:*", "Resource": QUEUE}
    return {"Effect": effect} | {key: value for key, value in (usual | elements).items() if value is not None}


def verdict(
    *statements: dict[str, Any],
    who: Identity = ALICE,
    action: str = "SendMessage",
    resource: str = QUEUE,
    **access: Any,
) -> Verdict:
    text = json.dumps({"Version": "2012-10-17", "Statement": list(statements)})
    # What is tested is also what may be set.
    assert checked({"Policy": text}, {}, fifo=False)
    context = context_of(Access(who, **{"source_ip": "192.0.2.7"} | access), "000000000000", NOW)
    return Policy.parse(text).verdict(who, action, resource, context)


def holds(operator: str, key: str, values: Any, **how: Any) -> bool:
    """Whether a condition agrees, which an Allow and a Deny must see alike."""
    condition = {operator: {key: values}}
    allows = verdict(statement(Condition=condition), **how)
    denies = verdict(statement("Deny", Condition=condition), **how)
    assert (allows, denies) in ((ALLOWED, DENIED), (NO_MATCH, NO_MATCH))
    return allows is ALLOWED


def is_not_understood(**elements: Any) -> bool:
    """Whether it permits nothing and refuses everything."""
    return (verdict(statement(**elements)), verdict(statement("Deny", **elements))) == (NO_MATCH, DENIED)


# Statements.


def test_nothing_matches_an_empty_policy() -> None:
    assert verdict() is NO_MATCH
    assert Policy.parse("{}").verdict(ALICE, "SendMessage", QUEUE, {}) is NO_MATCH


def test_one_statement_may_stand_without_a_list() -> None:
    assert Policy.parse(json.dumps({"Statement": statement()})).verdict(ALICE, "SendMessage", QUEUE, {}) is ALLOWED


def test_a_deny_outweighs_every_allow_in_any_order() -> None:
    assert verdict(statement("Deny"), statement()) is DENIED
    assert verdict(statement(), statement("Deny"), statement()) is DENIED
    assert verdict(statement(), statement("Deny", Action="sqs:ReceiveMessage")) is ALLOWED


@pytest.mark.parametrize("effect", ["allow", "Maybe", 1, None])
def test_an_effect_that_is_none_refuses(effect: Any) -> None:
    assert verdict(statement() | {"Effect": effect}) is DENIED


def test_an_element_that_is_missing_or_there_twice_is_not_understood() -> None:
    for element in ("Principal", "Action", "Resource"):
        assert is_not_understood(**{element: None})
        assert is_not_understood(**{f"Not{element}": "*"})


# Principals.


@pytest.mark.parametrize(
    ("principal", "who"),
    [
        ("*", "alice carol bob"),
        ({"AWS": "*"}, "alice carol bob"),
        ({"AWS": "111122223333"}, "alice carol"),
        ({"AWS": ["111122223333", "444455556666"]}, "alice carol bob"),
        ({"AWS": "arn:aws:iam::111122223333:root"}, "alice carol"),
        ({"AWS": "arn:aws-cn:iam::111122223333:root"}, "alice carol"),
        ({"AWS": "arn:aws:iam::111122223333:user/alice"}, "alice"),
        ({"AWS": ["arn:aws:iam::111122223333:user/alice", "arn:aws:iam::444455556666:user/bob"]}, "alice bob"),
        ({"AWS": "AIDAALICE"}, "alice"),
        ({"AWS": "arn:aws:iam::111122223333:role/alice"}, ""),
        ({"AWS": "AKIDALICE"}, ""),
        ({"AWS": []}, ""),
        ({"Service": "sns.amazonaws.com"}, ""),
        ({"Service": "sns.amazonaws.com", "AWS": "444455556666"}, "bob"),
        ({"Federated": "*"}, ""),
    ],
)
def test_a_principal_names_accounts_and_users(principal: Any, who: str) -> None:
    for effect, matched in (("Allow", ALLOWED), ("Deny", DENIED)):
        names = [
            user.name
            for user in (ALICE, CAROL, BOB)
            if verdict(statement(effect, Principal=principal), who=user) is matched
        ]
        assert names == who.split()


@pytest.mark.parametrize(
    "principal", ["111122223333", ["*"], {"*": "*"}, {"AWS": "arn:aws:iam::111122223333:user/*"}, {"AWS": None}, 7]
)
def test_a_principal_of_another_form_permits_nobody_and_refuses_all(principal: Any) -> None:
    assert is_not_understood(Principal=principal)


def test_not_principal_permits_whoever_is_of_no_named_account() -> None:
    allow = statement(Principal=None, NotPrincipal={"AWS": "111122223333"})
    assert [verdict(allow, who=who) for who in (ALICE, CAROL, BOB)] == [NO_MATCH, NO_MATCH, ALLOWED]
    allow = statement(Principal=None, NotPrincipal={"AWS": ALICE.arn})
    assert [verdict(allow, who=who) for who in (ALICE, CAROL, BOB)] == [NO_MATCH, ALLOWED, ALLOWED]


def test_a_deny_with_not_principal_spares_only_the_users_that_it_names() -> None:
    """An account in it does not spare its users, as in AWS's own example with a user and their account."""
    both = [ALICE.arn, "arn:aws:iam::111122223333:root"]
    deny = statement("Deny", Principal=None, NotPrincipal={"AWS": both})
    assert [verdict(deny, who=who) for who in (ALICE, CAROL, BOB)] == [NO_MATCH, DENIED, DENIED]
    assert verdict(statement("Deny", Principal=None, NotPrincipal="*")) is NO_MATCH


# Actions and resources.


@pytest.mark.parametrize(
    ("action", "matched"),
    [
        ("*", True),
        ("sqs:*", True),
        ("SQS:SendMessage", True),
        ("sqs:sendmessage", True),
        ("sqs:Send*", True),
        ("sqs:*Message", True),
        ("sqs:S?ndMessage", True),
        (["sqs:ReceiveMessage", "sqs:SendMessage"], True),
        ("SendMessage", False),
        ("sns:SendMessage", False),
        ("sqs:SendMessageBatch", False),
        ("sqs:Sen?Message", True),
        ("sqs:Se?Message", False),
        ("sqs:Receive*", False),
        ([], False),
    ],
)
def test_actions_have_wildcards_and_no_case(action: Any, matched: bool) -> None:
    assert (verdict(statement(Action=action)) is ALLOWED) is matched
    assert (verdict(statement(Action=None, NotAction=action)) is ALLOWED) is not matched


@pytest.mark.parametrize(
    ("resource", "matched"),
    [
        ("*", True),
        (QUEUE, True),
        ("arn:aws:sqs:*:000000000000:orders", True),
        ("arn:aws:sqs:us-east-1:000000000000:*", True),
        ("arn:aws:sqs:us-east-1:000000000000:order?", True),
        ([f"{QUEUE}.fifo", QUEUE], True),
        ("arn:aws:sqs:us-east-1:000000000000:Orders", False),
        ("arn:aws:sqs:us-east-1:000000000000:order", False),
        ("arn:aws:sqs:us-east-1:000000000000:orders?", False),
        ("arn:aws:sqs:us-east-1:000000000000.orders", False),
        ("arn:aws:sqs:eu-west-1:000000000000:orders", False),
    ],
)
def test_resources_have_wildcards_and_case(resource: Any, matched: bool) -> None:
    assert (verdict(statement(Resource=resource)) is ALLOWED) is matched
    assert (verdict(statement(Resource=None, NotResource=resource)) is ALLOWED) is not matched


def test_a_policy_variable_is_not_understood() -> None:
    assert is_not_understood(Resource="arn:aws:sqs:us-east-1:000000000000:${aws:username}")
    assert is_not_understood(Condition={"StringEquals": {"aws:username": "${aws:username}"}})


# Conditions.


@pytest.mark.parametrize(
    ("operator", "key", "values", "agrees"),
    [
        ("StringEquals", "aws:username", "alice", True),
        ("StringEquals", "AWS:UserName", ["bob", "alice"], True),
        ("StringEquals", "aws:username", "Alice", False),
        ("StringEquals", "aws:username", "al*", False),
        ("StringNotEquals", "aws:username", ["bob", "carol"], True),
        ("StringNotEquals", "aws:username", ["bob", "alice"], False),
        ("StringEqualsIgnoreCase", "aws:username", "ALICE", True),
        ("StringEqualsIgnoreCase", "aws:username", "ALICIA", False),
        ("StringNotEqualsIgnoreCase", "aws:username", "ALICE", False),
        ("StringNotEqualsIgnoreCase", "aws:username", "ALICIA", True),
        ("StringLike", "aws:username", "a*e", True),
        ("StringLike", "aws:username", "a???e", True),
        ("StringLike", "aws:username", "a??e", False),
        ("StringLike", "aws:username", "A*", False),
        ("StringNotLike", "aws:username", ["b*", "c*"], True),
        ("StringNotLike", "aws:username", ["b*", "a*"], False),
        ("StringEquals", "aws:PrincipalAccount", "111122223333", True),
        ("StringEquals", "aws:PrincipalAccount", 111122223333, True),
        ("StringEquals", "aws:userid", "AIDAALICE", True),
        ("StringEquals", "aws:PrincipalType", "User", True),
        ("StringEquals", "aws:RequestedRegion", "us-east-1", True),
        ("StringEquals", "aws:ResourceAccount", "000000000000", True),
        ("StringLike", "aws:UserAgent", "Boto3/*", True),
        ("ArnEquals", "aws:PrincipalArn", "arn:aws:iam::111122223333:user/alice", True),
        ("ArnEquals", "aws:PrincipalArn", "arn:aws:iam::*:user/al*", True),
        ("ArnLike", "aws:PrincipalArn", "arn:aws:iam::444455556666:user/*", False),
        ("ArnLike", "aws:PrincipalArn", "arn:*:user/alice", None),
        ("ArnLike", "aws:PrincipalArn", "arn:aws:*:111122223333:user/alice:x", False),
        ("ArnNotEquals", "aws:PrincipalArn", "arn:aws:iam::444455556666:user/*", True),
        ("ArnNotLike", "aws:PrincipalArn", "arn:aws:iam::111122223333:*", False),
        ("NumericEquals", "aws:EpochTime", "1784000000", True),
        ("NumericEquals", "aws:EpochTime", 1784000000.0, True),
        ("NumericNotEquals", "aws:EpochTime", "1784000000", False),
        ("NumericLessThan", "aws:EpochTime", "1784000000", False),
        ("NumericLessThan", "aws:EpochTime", "1784000001", True),
        ("NumericLessThanEquals", "aws:EpochTime", "1784000000", True),
        ("NumericLessThanEquals", "aws:EpochTime", "1783999999", False),
        ("NumericGreaterThan", "aws:EpochTime", "1784000000", False),
        ("NumericGreaterThan", "aws:EpochTime", "1783999999.5", True),
        ("NumericGreaterThanEquals", "aws:EpochTime", "1784000000", True),
        ("NumericGreaterThanEquals", "aws:EpochTime", "1784000001", False),
        ("NumericEquals", "aws:username", "7", False),
        ("NumericNotEquals", "aws:username", "7", True),
        ("DateEquals", "aws:CurrentTime", "2026-07-14T03:33:20Z", True),
        ("DateNotEquals", "aws:CurrentTime", "2026-07-14T03:33:20Z", False),
        ("DateEquals", "aws:EpochTime", "2026-07-14T05:33:20+02:00", True),
        ("DateEquals", "aws:CurrentTime", "2026-07-13T23:33:20-0400", True),
        ("DateLessThan", "aws:CurrentTime", "2026-07-15", True),
        ("DateLessThan", "aws:CurrentTime", "2026-07-14", False),
        ("DateGreaterThan", "aws:CurrentTime", "2026-07-14T03:33Z", True),
        ("DateGreaterThan", "aws:CurrentTime", "1784000000", False),
        ("DateGreaterThanEquals", "aws:CurrentTime", "1784000000", True),
        ("DateLessThanEquals", "aws:CurrentTime", "2026-07-14T03:33:19.999Z", False),
        ("Bool", "aws:SecureTransport", "false", True),
        ("Bool", "aws:SecureTransport", False, True),
        ("Bool", "aws:SecureTransport", "True", False),
        ("Bool", "aws:PrincipalIsAWSService", "false", True),
        ("IpAddress", "aws:SourceIp", "192.0.2.7", True),
        ("IpAddress", "aws:SourceIp", ["10.0.0.0/8", "192.0.2.0/24"], True),
        ("IpAddress", "aws:SourceIp", "192.0.2.8/31", False),
        ("IpAddress", "aws:SourceIp", "2001:db8::/32", False),
        ("NotIpAddress", "aws:SourceIp", "192.0.2.0/24", False),
        ("NotIpAddress", "aws:SourceIp", ["10.0.0.0/8", "2001:db8::/32"], True),
        ("stringequals", "aws:username", "alice", True),
    ],
)
def test_a_condition_agrees_or_does_not(operator: str, key: str, values: Any, agrees: bool | None) -> None:
    if agrees is None:
        assert is_not_understood(Condition={operator: {key: values}})
    else:
        assert holds(operator, key, values, user_agent="Boto3/1.40") is agrees


def test_a_secure_transport_is_one_over_tls() -> None:
    assert holds("Bool", "aws:SecureTransport", "true", secure=True)


@pytest.mark.parametrize(
    ("address", "network", "agrees"),
    [
        ("::ffff:192.0.2.7", "192.0.2.0/24", True),
        ("2001:db8::7", "2001:db8::/32", True),
        ("2001:db8::7", "192.0.2.0/24", False),
        ("", "0.0.0.0/0", False),
    ],
)
def test_addresses_of_both_kinds_are_understood(address: str, network: str, agrees: bool) -> None:
    assert holds("IpAddress", "aws:SourceIp", network, source_ip=address) is agrees


@pytest.mark.parametrize(
    ("operator", "agrees"),
    [
        ("StringEquals", False),
        ("StringLike", False),
        ("ArnLike", False),
        ("StringNotEquals", True),
        ("StringNotLike", True),
        ("ArnNotLike", True),
        ("StringEqualsIfExists", True),
        ("StringNotEqualsIfExists", True),
        ("ArnLikeIfExists", True),
        ("ForAllValues:StringEquals", True),
        ("ForAllValues:StringNotEquals", True),
        ("ForAnyValue:StringEquals", False),
        ("ForAnyValue:StringNotEquals", False),
        ("ForAnyValue:StringLikeIfExists", True),
    ],
)
def test_a_key_that_the_call_does_not_have_is_equal_to_nothing(operator: str, agrees: bool) -> None:
    """aws:SourceArn is for calls by AWS services, of which there are none."""
    assert holds(operator, "aws:SourceArn", "arn:aws:sns:us-east-1:000000000000:topic") is agrees


def test_null_asks_whether_the_call_has_a_key() -> None:
    assert holds("Null", "aws:SourceAccount", "true")
    assert not holds("Null", "aws:SourceAccount", "false")
    assert holds("Null", "aws:SourceIp", False)
    assert not holds("Null", "aws:SourceIp", True)


def test_if_exists_checks_a_key_that_is_there() -> None:
    assert holds("StringEqualsIfExists", "aws:username", "alice")
    assert not holds("StringEqualsIfExists", "aws:username", "bob")
    assert not holds("StringNotEqualsIfExists", "aws:username", "alice")


@pytest.mark.parametrize(
    ("operator", "wanted", "agrees"),
    [
        ("ForAnyValue:StringEquals", ["a"], True),
        ("ForAnyValue:StringEquals", ["c"], False),
        ("ForAllValues:StringEquals", ["a"], False),
        ("ForAllValues:StringEquals", ["a", "b", "c"], True),
        ("ForAnyValue:StringNotEquals", ["a"], True),
        ("ForAnyValue:StringNotEquals", ["a", "b"], False),
        ("ForAllValues:StringNotEquals", ["a"], False),
        ("ForAllValues:StringNotEquals", ["c"], True),
    ],
)
def test_several_values_of_one_key_are_asked_for_any_or_all(operator: str, wanted: list[str], agrees: bool) -> None:
    policy = Policy.parse(json.dumps({"Statement": statement(Condition={operator: {"aws:TagKeys": wanted}})}))
    assert (policy.verdict(ALICE, "SendMessage", QUEUE, {"aws:tagkeys": ("a", "b")}) is ALLOWED) is agrees


def test_all_operators_and_all_keys_must_agree() -> None:
    good, bad = {"aws:username": "alice"}, {"aws:userid": "another"}
    assert verdict(statement(Condition={"StringEquals": good, "StringLike": good})) is ALLOWED
    assert verdict(statement(Condition={"StringEquals": good, "StringLike": bad})) is NO_MATCH
    assert verdict(statement(Condition={"StringEquals": good | bad})) is NO_MATCH


@pytest.mark.parametrize(
    ("operator", "value"),
    [
        ("StringMatches", "x"),
        ("BinaryEquals", "QmluYXJ5"),
        ("NotStringEquals", "x"),
        ("BoolNot", "true"),
        ("NumericNotLessThan", "1"),
        ("NullIfExists", "true"),
        ("ForSomeValues:StringEquals", "x"),
        ("", "x"),
        ("Null", "maybe"),
        ("Bool", "maybe"),
        ("NumericEquals", "seven"),
        ("DateLessThan", "tomorrow"),
        ("DateLessThan", "2026-13-01"),
        ("DateLessThan", "0000-01-01"),
        ("IpAddress", "300.0.0.1"),
        ("ArnLike", "orders"),
        ("StringEquals", None),
        ("StringEquals", {"a": "b"}),
    ],
)
def test_what_is_not_understood_permits_nothing_and_refuses_everything(operator: str, value: Any) -> None:
    """Also where the key is one that the call does not have, or the operator spares those that have none."""
    for key in ("aws:username", "aws:SourceArn"):
        assert is_not_understood(Condition={operator: {key: value}})


@pytest.mark.parametrize("condition", [[], "x", {"StringEquals": "x"}, {"StringEquals": []}])
def test_a_condition_of_another_form_is_not_understood(condition: Any) -> None:
    assert is_not_understood(Condition=condition)


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    wanted = "*a" * 1_000 + "*b"
    assert not holds("StringLike", "aws:UserAgent", wanted, user_agent="a" * 1_024)
    assert holds("StringLike", "aws:UserAgent", wanted, user_agent="a" * 1_023 + "b")


@given(st.text("ab?*", max_size=8), st.text("ab", max_size=8))
def test_wildcards_are_those_of_a_shell(pattern: str, text: str) -> None:
    def matches(pattern: str, text: str) -> bool:
        if not pattern:
            return not text
        if pattern[0] == "*":
            return matches(pattern[1:], text) or (bool(text) and matches(pattern, text[1:]))
        return bool(text) and pattern[0] in (text[0], "?") and matches(pattern[1:], text[1:])

    policy = Policy.parse(json.dumps({"Statement": statement(Resource=pattern)}))
    assert (policy.verdict(ALICE, "SendMessage", text, {}) is ALLOWED) is matches(pattern, text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["Effect", "Principal", "NotPrincipal", "Action", "NotAction", "Resource", "Condition", "Sid"]),
        _JSON | st.sampled_from(["Allow", "Deny", "*", {"AWS": "*"}, {"StringLike": {"aws:username": "*"}}]),
    )
)
def test_any_statement_can_be_parsed_and_none_that_is_malformed_permits(malformed: dict[str, Any]) -> None:
    policy = Policy.parse(json.dumps({"Statement": [malformed]}))
    verdict = policy.verdict(ALICE, "SendMessage", QUEUE, context_of(Access(ALICE), "000000000000", NOW))
    assert verdict in Verdict
    if verdict is ALLOWED:
        assert malformed["Effect"] == "Allow"
        assert {"Resource"} < malformed.keys()


@pytest.mark.parametrize("depth", [60, 5_000])
@pytest.mark.parametrize("name", ["Policy", "RedriveAllowPolicy"])
def test_a_document_that_is_nested_deeper_than_any_policy_is_refused(name: str, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    with pytest.raises(ServiceError):
        checked({name: f'{{"Statement": {nested}, "redrivePermission": "allowAll"}}'}, {}, fifo=False)
