"""Every store keeps the key rules, using only the contract's own calls."""

from __future__ import annotations

from ledger.stores import Shift
from semel.consumer import key_rules
from semel.ledger.contract import Ledger


def test_a_key_rule_that_was_changed_is_noticed_once(ledger: Ledger, clock_offset: Shift) -> None:
    assert key_rules.update({"orders": "$.n", "payments": "message-id"}, ledger, "a") == {}
    assert key_rules.update({"orders": "$.n"}, ledger, "b") == {}
    clock_offset.advance(2 * ledger.retention)  # the rule outlives the keys
    assert key_rules.update({"orders": "$.order.id", "payments": "message-id"}, ledger, "c") == {"orders": "$.n"}
    assert key_rules.update({"orders": "$.order.id"}, ledger, "d") == {}
