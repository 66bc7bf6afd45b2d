"""Numbers that are looked at again and again."""

import asyncio

import pytest

from postroad.admin import readings
from postroad.admin.readings import Rate, Reading


def test_rate_is_of_the_last_looks() -> None:
    rate = Rate()
    assert rate.look(100, 5.0) == 0
    assert rate.look(100, 5.0) == 0
    assert rate.look(140, 7.0) == 20
    assert rate.look(140, 9.0) == 10
    rate = Rate()
    rate.look(0, 0.0)
    assert rate.look(6_000, 60.0) == 100
    rate = Rate()
    rate.look(500, 0.0)
    assert rate.look(3, 1.0) == 0
    rate = Rate()
    for second in range(100):
        rate.look(second * 50, float(second))
    assert rate.look(100 * 50, 100.0) == pytest.approx(50)
    last = 1.0
    for second in range(101, 130):
        last = rate.look(100 * 50, float(second))
    assert last == 0
    rate = Rate()
    for look in range(10_000):
        rate.look(look, look / 1_000)
    assert len(rate._samples) <= 64
    assert rate.look(10_000, 10.0) == pytest.approx(1_000, rel=0.1)


class Clock:
    """A clock that a test turns."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(readings, "time", clock)
    return clock


async def test_what_was_found_is_good_for_a_while(clock: Clock) -> None:
    found = 0

    async def find() -> int:
        nonlocal found
        found += 1
        clock.now += 0.5
        return found

    reading = Reading(find)
    assert await reading.take() == 1
    clock.now += 4.9
    # It took half a second, so it is good for ten times that.
    assert await reading.take() == 1
    clock.now += 0.2
    assert await reading.take() == 2


async def test_those_who_look_at_the_same_time_share_one_look(clock: Clock) -> None:
    looks = 0

    async def find() -> int:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0)
        return looks

    reading = Reading(find)
    assert await asyncio.gather(*(reading.take() for _ in range(5))) == [1] * 5


async def test_look_that_fails_is_made_again(clock: Clock) -> None:
    results: list[int | Exception] = [ValueError("away"), 7]

    async def find() -> int:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    reading = Reading(find)
    with pytest.raises(ValueError, match="away"):
        await reading.take()
    assert await reading.take() == 7


async def test_what_is_known_to_be_wrong_is_found_out_again(clock: Clock) -> None:
    found = 0

    async def find() -> int:
        nonlocal found
        found += 1
        if found == 2:
            # Somebody changes something while it is looked at.
            reading.forget()
        return found

    reading = Reading(find)
    assert [await reading.take(), await reading.take()] == [1, 1]
    reading.forget()
    assert [await reading.take(), await reading.take(), await reading.take()] == [2, 3, 3]
