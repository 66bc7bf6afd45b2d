"""Queues are declared exactly as Moleculer declares them."""

from itertools import product

import pytest

from postroad.core.errors import ConfigError
from postroad.services.kinds import GOSSIP, Kind
from postroad.services.transporters.amqp_queues import (
    QueueForm,
    QueueForms,
    can_be_declared,
    check_own_queue_name,
    check_queue_name,
    is_confirmed,
)
from tests.support.cases import naming

LASTING = QueueForm(False, {"x-expires": 120_000})
FLEETING = QueueForm(True, {})


def test_queue_forms_follow_kind_and_options() -> None:
    for kind in [kind for kind in Kind if kind not in GOSSIP]:
        is_lasting = kind in (Kind.REQUEST, Kind.RESPONSE, Kind.EVENT)
        assert QueueForms().of(kind) == (LASTING if is_lasting else FLEETING), kind
    forms = QueueForms()
    assert forms.of(Kind.REQUEST, is_balanced=True) == QueueForm(False, {})
    assert forms.of(Kind.EVENT, is_balanced=True) == LASTING
    forms = QueueForms(expires_s=None, event_ttl_s=5, heartbeat_ttl_s=0.25)
    assert forms.of(Kind.REQUEST) == QueueForm(False, {})
    assert forms.of(Kind.RESPONSE) == QueueForm(False, {})
    assert forms.of(Kind.EVENT) == QueueForm(False, {"x-message-ttl": 5_000})
    assert forms.of(Kind.EVENT, is_balanced=True) == QueueForm(False, {"x-message-ttl": 5_000})
    assert forms.of(Kind.HEARTBEAT) == QueueForm(True, {"x-message-ttl": 250})
    assert forms.of(Kind.INFO) == FLEETING
    both = QueueForms(expires_s=60, event_ttl_s=5).of(Kind.EVENT)
    assert both.arguments == {"x-expires": 60_000, "x-message-ttl": 5_000}
    for option, value in product(["expires_s", "event_ttl_s", "heartbeat_ttl_s"], [0, -1, 0.0001]):
        with naming((option, value)), pytest.raises(ConfigError, match=option):
            QueueForms(**{option: value})
    for kind in [kind for kind in Kind if kind not in GOSSIP]:
        assert is_confirmed(kind) == (kind is Kind.REQUEST), kind
        assert is_confirmed(kind, is_balanced=True), kind


def test_queue_names_are_checked() -> None:
    for name in ("x" * 255, "ö" * 127):
        assert check_queue_name(name) is name
    for name in ("x" * 256, "ö" * 128):
        with pytest.raises(ConfigError, match="longer than AMQP takes"):
            check_queue_name(name)
    assert can_be_declared("MOL-ns.EVENTB.mail-2.user.created_at")
    for name in ("MOL.EVENTB.mail.user.*", "MOL.EVENTB.mail.$node.connected", "MOL.REQ.a?"):
        assert not can_be_declared(name)
        with pytest.raises(ConfigError, match="letter"):
            check_own_queue_name(name)
    assert check_own_queue_name("MOL.REQ.node-1") == "MOL.REQ.node-1"
