"""What is sent to a peer and when, and which answers mean that a store is an old copy."""

import pytest

from postroad.core.errors import (
    MalformedPayloadError,
    ReceiverStateLostError,
    SenderStateLostError,
    StreamDivergedError,
    StreamMismatchError,
)
from postroad.durable import DurableQueuesConfig
from postroad.durable.bridges.protocol import (
    DeadLetterReason,
    MessageRejection,
    StreamAck,
    WindowStatus,
    WireBatch,
)
from postroad.durable.bridges.send_window import (
    BridgeSendWindow,
    StreamIdentity,
    check_stream_consistency,
    new_rejections,
)
from postroad.durable.store.tables.rows import OutboxBatch, PeerState
from tests.support.cases import each
from tests.support.durable.nodes import NOW_MS

COURSE = StreamIdentity(peer="beta", store=b"s" * 16, epoch=3, token=7)
CONFIG = DurableQueuesConfig(window_bytes=1_000, windows_max=2)


def chain(number: int) -> bytes:
    """The chain after that message."""
    return b"%016d" % number


def answer(
    watermark: int = 0, *, credit: int = 1 << 30, verdict: WindowStatus = WindowStatus.ACCEPTED
) -> StreamAck:
    return StreamAck(verdict, watermark, chain(watermark), credit, [])


def pages(*sizes: int | None, first: int = 1) -> list[OutboxBatch]:
    """Pages of one letter each; None for one whose letters were removed."""
    return [
        OutboxBatch(number, number, chain(number), None if size is None else b"x" * size)
        for number, size in enumerate(sizes, first)
    ]


def make_outflow(accepted: int = 0, credit: int = 1 << 30) -> BridgeSendWindow:
    return BridgeSendWindow(COURSE, CONFIG, answer(accepted, credit=credit))


def make_peer(head: int, settled: int) -> PeerState:
    return PeerState(1, "beta", 3, head, chain(head), settled, chain(settled))


def test_stores_that_agree() -> None:
    for watermark in (4, 7, 9):
        check_stream_consistency(make_peer(head=9, settled=4), answer(watermark), chain(watermark))


@each(
    (3, None, ReceiverStateLostError),
    (0, None, ReceiverStateLostError),
    (10, None, SenderStateLostError),
    (7, None, StreamDivergedError),
    (7, b"another chain....", StreamDivergedError),
    (4, b"another chain....", StreamDivergedError),
)
def test_stores_that_do_not(
    watermark: int, chain_here: bytes | None, error: type[StreamMismatchError]
) -> None:
    with pytest.raises(error, match="start a new epoch") as caught:
        check_stream_consistency(make_peer(head=9, settled=4), answer(watermark), chain_here)
    assert type(caught.value) is error
    assert "'beta'" in str(caught.value)
    assert str(watermark) in str(caught.value)


def test_windows_continue_each_other() -> None:
    outflow = make_outflow(accepted=4)
    window = outflow.next_window(pages(5, None, first=5), 3, NOW_MS)
    assert (window.store, window.epoch, window.token) == (b"s" * 16, 3, 7)
    assert (window.first, window.previous, window.now_ms) == (5, chain(4), NOW_MS)
    # What is durably removed here may be less than what the peer has.
    assert window.acked == 3
    assert window.batches == [WireBatch(1, chain(5), b"xxxxx"), WireBatch(1, chain(6), None)]
    assert outflow.sent == 6
    outflow = make_outflow()
    outflow.next_window(pages(1, 1), 0, NOW_MS)
    window = outflow.next_window(pages(1, first=3), 0, NOW_MS)
    assert (window.first, window.previous) == (3, chain(2))
    assert outflow.in_flight == 2
    page = OutboxBatch(1, 40, chain(40), b"x")
    assert make_outflow().next_window([page], 0, NOW_MS).batches[0].count == 40


def test_send_window_selects_batches_up_to_window_size() -> None:
    outflow = make_outflow()
    waiting = pages(300, 300, 300, 300)
    assert outflow.select_batches(waiting) == waiting[:2]
    assert outflow.select_batches(waiting[:1]) == waiting[:1]
    assert outflow.select_batches([]) == []
    waiting = pages(5_000, 1)
    assert make_outflow().select_batches(waiting) == waiting[:1]
    assert len(make_outflow().select_batches(pages(*[None] * 500))) < 500
    outflow = make_outflow(credit=0)
    assert outflow.select_batches(pages(1)) == ()


def test_windows_and_bytes_on_their_way_are_limited() -> None:
    outflow = make_outflow()
    for number in (1, 2):
        assert outflow.available_bytes > 0
        outflow.next_window(pages(1, first=number), 0, NOW_MS)
    assert outflow.available_bytes <= 0
    assert outflow.select_batches(pages(1, first=3)) == ()
    assert outflow.on_ack(answer(1))
    assert outflow.available_bytes > 0
    assert outflow.in_flight == 1
    outflow = make_outflow(credit=700)
    assert outflow.available_bytes == 700
    outflow.next_window(pages(500), 0, NOW_MS)
    assert outflow.available_bytes == 200
    outflow.next_window(pages(200, first=2), 0, NOW_MS)
    assert outflow.available_bytes <= 0
    # The peer counts what it has taken, not what is still on its way.
    outflow.on_ack(answer(1, credit=200))
    assert outflow.available_bytes <= 0
    outflow.on_ack(answer(2, credit=100))
    assert outflow.available_bytes == 100


def test_answers_move_the_watermark_forward_alone() -> None:
    outflow = make_outflow()
    outflow.next_window(pages(1, 1), 0, NOW_MS)
    assert outflow.on_ack(answer(2))
    assert outflow.accepted == 2
    assert not outflow.is_full
    outflow = make_outflow(accepted=5)
    outflow.next_window(pages(1, first=6), 0, NOW_MS)
    outflow.on_ack(answer(3, verdict=WindowStatus.GAP))
    assert outflow.accepted == 5
    outflow = make_outflow()
    outflow.next_window(pages(1), 0, NOW_MS)
    outflow.next_window(pages(1, first=2), 0, NOW_MS)
    assert outflow.on_ack(answer(2))
    assert outflow.on_ack(answer(2))
    assert (outflow.accepted, outflow.in_flight) == (2, 0)
    for verdict in (WindowStatus.GAP, WindowStatus.FULL, WindowStatus.FENCED):
        outflow = make_outflow()
        outflow.next_window(pages(1, 1), 0, NOW_MS)
        assert not outflow.on_ack(answer(1, verdict=verdict)), verdict
        assert outflow.accepted == 1, verdict
        assert outflow.is_full is (verdict is WindowStatus.FULL), verdict


def test_answer_that_cannot_be_is_an_error() -> None:
    outflow = make_outflow()
    outflow.next_window(pages(1), 0, NOW_MS)
    with pytest.raises(StreamDivergedError, match="'beta'"):
        outflow.on_ack(answer(0, verdict=WindowStatus.DIVERGED))
    outflow = make_outflow(accepted=4)
    outflow.next_window(pages(1, 1, first=5), 4, NOW_MS)
    with pytest.raises(MalformedPayloadError, match="accepts message 7, and 6 is the last"):
        outflow.on_ack(answer(7))
    assert outflow.accepted == 4


@each(
    ([2, 3], [2, 3]),
    # Each once, however often it is told, and in order.
    ([2, 2, 2], [2]),
    ([3, 2], [3]),
    # Neither what was settled before, nor what was not accepted.
    ([1, 2, 5, 6], [2, 5]),
    ([], []),
)
def test_new_rejections_are_those_of_newly_accepted_messages(
    numbers: list[int], expected: list[int]
) -> None:
    refusals = [MessageRejection(number, DeadLetterReason.UNKNOWN_QUEUE, "") for number in numbers]
    accepted = StreamAck(WindowStatus.ACCEPTED, 5, chain(5), 0, refusals)
    assert [rejection.number for rejection in new_rejections(accepted, 1)] == expected
