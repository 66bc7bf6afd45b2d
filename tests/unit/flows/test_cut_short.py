"""Code that never waits is committed piece by piece, and is the same when it is run again."""

from __future__ import annotations

import itertools

import pytest

from postroad.core.limits import FLOW_RECORDS_MAX
from postroad.flows import Flow, FlowTimeout, Session, Status, flow
from postroad.flows.events import Paused, Resumed, Signalled, StepDone, Woke
from postroad.flows.values import encode
from tests.support.flows.driven import Driven, begun

MANY = 2 * FLOW_RECORDS_MAX + 10


async def send_many(session: Session) -> int:
    for number in range(MANY):
        await session.send(number)
    return MANY


async def take_step(flow: Flow) -> int:
    first: int = await flow.step(abs, 1)
    second: int = await flow.step(abs, 2)
    return first + second


@flow
async def both(flow: Flow) -> list[int]:
    return await flow.gather(send_many(flow.open("beta")), take_step(flow))


@flow
async def waits_for_nothing(flow: Flow) -> int:
    """Everything that is answered at once, again and again."""
    for number in itertools.count():
        await flow.sleep(0)
        async with flow.transaction():
            pass
        try:
            await flow.signal("enough", bool, timeout=0)
        except FlowTimeout:
            continue
        return number
    return -1


def test_what_is_done_at_once_is_committed_in_pieces() -> None:
    driven = begun(both)
    sizes = [len(driven.records)]
    while driven.course[-1].is_cut:
        assert driven.head.wake_ms == 0
        assert driven.machine.due_ms is None
        driven.tell(Woke())
        sizes.append(len(driven.records))
    assert sizes == [FLOW_RECORDS_MAX, 2 * FLOW_RECORDS_MAX, MANY]
    # The steps were not kept waiting for that.
    driven.tell(StepDone((0, 1, 0), 1))
    driven.tell(StepDone((0, 1, 1), 2))
    assert driven.result == [MANY, 3]
    assert [it[1].payload for it in driven.said if hasattr(it[1], "payload")] == [
        encode(it, "it") for it in range(MANY)
    ]


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("is_crashed", [False, True])
def test_what_happens_in_between_is_replayed_in_its_place(place: int, is_crashed: bool) -> None:
    driven = begun(both)
    for _ in range(place):
        driven.tell(Woke())
    driven.tell(StepDone((0, 1, 0), 1))
    if is_crashed:
        # What was put off at the crash is not in the record, and what came before it is.
        driven.load()
    driven.tell(Paused())
    driven.tell(Resumed())
    while driven.course[-1].is_cut:
        driven.load()
    driven.tell(StepDone((0, 1, 1), 2))
    assert driven.result == [MANY, 3]
    kinds = [it.kind.value for it in driven.records]
    assert (kinds.count("send"), kinds.count("step")) == (MANY, 2)


def test_a_record_with_steps_between_is_the_same_for_every_part_of_it() -> None:
    driven = begun(both)
    driven.tell(StepDone((0, 1, 0), 1))
    driven.tell(Woke())
    driven.tell(StepDone((0, 1, 1), 2))
    assert driven.result == [MANY, 3]
    whole = driven.stored
    for count in (0, 1, FLOW_RECORDS_MAX, FLOW_RECORDS_MAX + 1, FLOW_RECORDS_MAX + 2, MANY):
        head = whole.read_head()
        head.status, head.result, head.ended_ms = Status.RUNNING, None, None
        part = whole._replace(records=whole.records[:count], head=encode(head, "it"))
        again = Driven(both, stored=part)
        again.load()
        while again.course[-1].is_cut:
            again.tell(Woke())
        for position, value in (((0, 1, 0), 1), ((0, 1, 1), 2)):
            if again.head.status is Status.RUNNING:
                again.tell(StepDone(position, value))
        assert again.result == [MANY, 3], count


def test_an_endless_loop_lets_others_in_and_is_replayed() -> None:
    driven = begun(waits_for_nothing)
    for number in range(4):
        assert driven.course[-1].is_cut, number
        driven.tell(Woke()) if number % 2 else driven.load()
    driven.tell(Paused())
    assert driven.head.status == "paused"
    driven.tell(Resumed())
    driven.tell(Signalled("enough", encode(True, "it")))
    while driven.head.status is Status.RUNNING:
        driven.tell(Woke())
    assert driven.result > FLOW_RECORDS_MAX
