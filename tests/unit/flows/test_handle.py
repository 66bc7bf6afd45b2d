"""What the code of a flow works with."""

import functools
import random
import uuid
from typing import Any

from postroad.flows import Flow, Status, flow
from postroad.flows.events import Admitted, StepDone
from tests.support.cases import each
from tests.support.flows.driven import Driven, begun, labels


def work(number: int = 0) -> int:
    return number


class Worker:
    def __call__(self) -> int:
        return 1


def outcome(body: Any) -> str:
    """What becomes of a flow that does something wrong."""
    driven = begun(flow(body))
    assert driven.head.status is Status.PARKED
    assert driven.said == []
    return driven.trouble


@each(-1, float("nan"), float("inf"), 1e12)
def test_times_that_are_none(seconds: float) -> None:
    async def sleeps(flow: Flow) -> None:
        await flow.sleep(seconds)

    async def receives(flow: Flow) -> None:
        await flow.signal("go", int, timeout=seconds)

    assert "is no number of seconds" in outcome(sleeps)
    assert "is no number of seconds" in outcome(receives)


def test_faulty_calls_park_the_flow() -> None:
    async def opens(flow: Flow) -> None:
        flow.open("no such/name")

    assert "no such/name" in outcome(opens)

    async def sends(flow: Flow) -> None:
        await flow.open("beta").send("x" * 101)

    driven = begun(flow(sends), settings={"payload_max": 100})
    assert "what is sent to beta takes 103 bytes, and 100 is the most" in driven.trouble
    assert driven.said == []

    async def sends_object(flow: Flow) -> None:
        await flow.open("beta").send(object())

    assert "what is sent to beta cannot be written down" in outcome(sends_object)

    async def receives(flow: Flow) -> None:
        session = flow.open("beta")
        await flow.receive_all([session, session], int)

    assert "was given a session twice" in outcome(receives)


def test_opening_or_asking_nobody_says_nothing() -> None:
    @flow
    async def nobody(flow: Flow) -> list[int]:
        await flow.send_all({})
        return await flow.receive_all([], int)

    driven = Driven(nobody)
    assert labels(driven.tell(Admitted())) == []
    assert driven.result == []

    @flow
    async def shy(flow: Flow) -> str:
        return flow.open("beta").peer

    driven = begun(shy)
    assert (driven.result, driven.said) == ("beta", [])

    @flow
    async def shows(flow: Flow) -> str:
        return repr(flow.open("beta"))

    assert begun(shows).result == "<Session 1 with beta fresh>"


@each((work, "work"), (functools.partial(work, 1), "work"), (Worker(), "Worker"), (len, "len"))
def test_steps_are_called_as_their_functions_whenever_they_run(function: Any, name: str) -> None:
    @flow
    async def steps(flow: Flow) -> None:
        await flow.step(function)

    driven = begun(steps)
    (label,) = driven.waiting
    assert name in label
    assert "0x" not in label


def test_flow_has_names_for_itself_and_its_steps() -> None:
    @flow
    async def steps(flow: Flow) -> None:
        await flow.step(work, name="other")

    assert begun(steps).waiting == ["0 step(other)"]

    @flow(name="shop.buy", version=3)
    async def buy(flow: Flow) -> list[Any]:
        return [flow.id, flow.name, flow.version, repr(flow)]

    assert begun(buy).result == [
        "0000000000000009",
        "shop.buy",
        3,
        "<Flow shop.buy 0000000000000009>",
    ]


def test_random_numbers_and_ids_come_from_what_the_flow_was_given() -> None:
    @flow
    async def draws(flow: Flow) -> list[Any]:
        assert isinstance(flow.random(), random.Random)
        return [flow.random().random(), flow.random().random(), flow.uuid(), flow.uuid()]

    first, again, other = begun(draws), begun(draws), begun(draws, entropy=b"f" * 16)
    assert first.result == again.result
    assert len({*map(str, first.result), *map(str, other.result)}) == 8
    assert uuid.UUID(first.result[2]).version == 4


def test_answers_are_there_for_queries() -> None:
    @flow
    async def asked(flow: Flow) -> None:
        seen = [1]
        flow.answer("seen", lambda: list(seen))
        await flow.step(work)
        seen.append(2)
        await flow.step(work)

    driven = begun(asked)
    driven.tell(StepDone((0,), 0))
    driven.load()
    assert driven.flow is not None
    assert driven.flow.answers["seen"]() == [1, 2]
