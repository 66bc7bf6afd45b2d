"""Messages that are kept a while."""

from postroad.cells.delivery.envelope import Envelope
from postroad.cells.delivery.requests import ResendBuffer, SentMessage
from tests.support.cells.offline_domain import make_request

AVOID = frozenset({"*@C1"})
HEAD = make_request("b@S2", b"").memory_bytes
"""What a message without a payload counts."""


def keep(resends: ResendBuffer, size: int = 0) -> Envelope:
    envelope = make_request("b@S2", bytes(size))
    resends.put(SentMessage(envelope, AVOID, 1.5))
    return envelope


def test_resend_buffer_returns_each_message_once() -> None:
    resends = ResendBuffer(10, 10 * HEAD)
    envelope = keep(resends)
    sent = resends.pop(envelope.id)
    assert sent is not None
    assert sent == SentMessage(envelope, AVOID, 1.5)
    assert resends.pop(envelope.id) is None
    assert resends.pop(b"unknown") is None

    resends = ResendBuffer(100, 2 * HEAD + 100)
    for _ in range(10):
        assert resends.pop(keep(resends, 100).id) is not None
    envelopes = [keep(resends, 50), keep(resends, 50)]
    assert all(resends.pop(envelope.id) for envelope in envelopes)
    resends = ResendBuffer(100, 2 * HEAD)
    first, second = keep(resends), keep(resends)
    for _ in range(3):
        resends.put(SentMessage(second, AVOID, 2.5))
    assert len(resends) == 2
    assert resends.pop(first.id) is not None
    assert resends.pop(second.id) == SentMessage(second, AVOID, 2.5)


def test_the_oldest_are_forgotten_by_number_and_by_bytes() -> None:
    resends = ResendBuffer(3, 10 * HEAD)
    envelopes = [keep(resends) for _ in range(5)]
    assert [resends.pop(envelope.id) is not None for envelope in envelopes] == [False] * 2 + [
        True
    ] * 3
    assert len(resends) == 0

    resends = ResendBuffer(100, 2 * HEAD + 100)
    envelopes = [keep(resends, 40) for _ in range(3)]
    assert len(resends) == 2
    assert resends.pop(envelopes[0].id) is None

    resends = ResendBuffer(100, 2 * HEAD)
    envelopes = [keep(resends) for _ in range(3)]
    assert len(resends) == 2
    assert resends.pop(envelopes[0].id) is None

    resends = ResendBuffer(100, HEAD + 100)
    small = keep(resends, 10)
    large = keep(resends, 101)
    assert resends.pop(large.id) is None
    assert resends.pop(small.id) is not None
