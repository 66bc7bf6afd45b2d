"""What a parent is told of the end of its child fits into a message."""

from __future__ import annotations

import msgspec
import pytest

from postroad.flows import FlowContext, FlowError, flow
from postroad.flows.machine.requests import ChildEnded
from postroad.flows.machine.values import restore_error
from tests.support.flows.driven import begun

LIMIT = 2_000


@flow
async def fail(ctx: FlowContext, texts: list[str]) -> None:
    raise FlowError(*texts)


@flow
async def answer(ctx: FlowContext, size: int) -> bytes:
    return bytes(size)


@pytest.mark.parametrize("texts", [["x" * 50_000], ["🐟" * 1_999], ["short", "y" * 1_999]])
def test_errors_are_shortened(texts: list[str]) -> None:
    settings = {"payload_max": LIMIT}
    driven = begun(fail, texts, settings=settings, parent="1" * 16, client_id="child")
    (request,) = driven.course[0].requests
    assert isinstance(request, ChildEnded) and request.outcome.error is not None
    assert len(msgspec.msgpack.encode(request)) < LIMIT + 200
    assert type(restore_error(request.outcome.error)) is FlowError
    # Operators see all that was kept.
    assert driven.head.failure is not None
    assert len(driven.head.failure.error.text) >= len(request.outcome.error.text)


def test_result_that_fits_in_no_message_is_an_error() -> None:
    for size, is_error in ((LIMIT // 2, False), (LIMIT, True)):
        settings = {"payload_max": LIMIT}
        driven = begun(answer, size, settings=settings, parent="1" * 16, client_id="child")
        (request,) = driven.course[0].requests
        assert isinstance(request, ChildEnded)
        assert (request.outcome.error is not None) is is_error
        assert (request.outcome.result is None) is is_error
