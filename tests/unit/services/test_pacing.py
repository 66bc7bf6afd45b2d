"""How often nodes are asked and answered."""

import asyncio

from postroad.services.pacing import ANSWERS_MAX, AT_ONCE_MAX, NAMES_MAX, Allowance, Answers, Pacing
from tests.support.deadlines import eventually


def test_allowance_is_some_at_once_then_a_rate_for_each() -> None:
    allowance = Allowance(3, 2.0)
    assert [allowance.take("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert allowance.take("b", 0.0)
    assert [allowance.take("a", 0.5) for _ in range(2)] == [True, False]
    assert [allowance.take("a", 100.0) for _ in range(4)] == [True, True, True, False]


def test_allowance_remembers_some_names_only() -> None:
    allowance = Allowance(1, 0.1)
    assert allowance.take("first", 0.0)
    for number in range(NAMES_MAX):
        assert allowance.take(f"name {number}", 0.0)
    assert allowance.take("first", 0.0)


async def test_what_is_wanted_too_often_is_done_once_more() -> None:
    done: list[str] = []
    pacing = Pacing(done.append)
    for _ in range(100):
        pacing.want("a")
    assert done == ["a"] * AT_ONCE_MAX
    await eventually(lambda: len(done) > AT_ONCE_MAX, "it is done when the pause is over")
    pacing.want("a")
    pacing.close()
    assert len(done) <= AT_ONCE_MAX + 2


async def test_crowd_is_answered_by_one_answer_for_all() -> None:
    answered: list[str | None] = []
    answers = Answers(answered.append)
    for number in range(1_000):
        answers.asked(f"node {number}")
    assert len(answered) == ANSWERS_MAX
    await eventually(lambda: None in answered, "all are told")
    await asyncio.sleep(0)
    answers.close()
    assert answered.count(None) == 1
