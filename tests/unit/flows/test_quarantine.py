"""Who is blamed when processes end, over many starts of a model of one."""

from __future__ import annotations

import math

import pytest

from postroad.flows import Status, quarantine
from postroad.flows.head import Head

RECOVERIES_MAX = 5
TRIAL_MS = 1_000


class Model:
    """A node whose flows are all in a step that takes for ever.

    Args:
        flows: how many it has.
        guilty: those that end the process so many milliseconds after they begin.
    """

    def __init__(self, flows: int, guilty: dict[int, float] | None = None) -> None:
        self.heads = [make_head(id) for id in range(flows)]
        self.guilty = guilty or {}
        self.now_ms = 0

    def live(self, killed_after_ms: float = math.inf, *, was_killed: bool = True) -> float:
        """Start, and run until the process ends or nobody is left to be tried; how long it ran."""
        at_work = [it for it in self.heads if it.status is Status.RUNNING]
        if was_killed:
            quarantine.charge(at_work)
        for head in at_work:
            if quarantine.is_guilty(head):
                quarantine.convict(head, self.now_ms)
        wanted = [it for it in self.heads if quarantine.is_to_be_tried(it, RECOVERIES_MAX)]
        trials = quarantine.plan(wanted, self.now_ms, TRIAL_MS)
        for trial in trials:
            for head in trial.heads:
                quarantine.put_off(head, trial.begins_ms, self.now_ms)
        # What happens when, since the start: a flow begins, or was tried for long enough.
        began = [(0.0, "begins", it) for it in self.heads if it.status is Status.RUNNING]
        for trial in trials:
            began += [(trial.begins_ms - self.now_ms, "begins", it) for it in trial.heads]
            began += [(trial.ends_ms - self.now_ms, "survives", it) for it in trial.heads]
        deaths = [
            at + self.guilty[it.id]
            for at, what, it in began
            if what == "begins" and it.id in self.guilty
        ]
        end = min([killed_after_ms, *deaths])
        for at, what, head in sorted(began, key=lambda it: it[:2]):
            if at >= end:
                break
            if what == "survives":
                head.is_suspect = False
            elif head.status is Status.RETRYING:
                head.status = Status.RUNNING
                head.trials += 1
        self.now_ms += 1_000_000
        return end

    def parked(self) -> list[int]:
        return [it.id for it in self.heads if it.status is Status.PARKED]

    def running(self) -> int:
        return sum(it.status is Status.RUNNING for it in self.heads)


def make_head(id: int) -> Head:
    return Head(
        id=id, name="pay", version=1, status=Status.RUNNING, entropy=b"e", started_ms=0, wake_ms=0
    )


@pytest.mark.parametrize("after_ms", [10, 500, 999, 1_500, 2_500, 3_500])
def test_kills_from_outside_park_nobody_however_often(after_ms: float) -> None:
    model = Model(20)
    for _ in range(60):
        model.live(after_ms)
    assert model.parked() == []
    # As soon as nobody kills it, all of them go on.
    assert model.live() == math.inf
    assert (model.parked(), model.running()) == ([], 20)


def test_one_flow_alone_is_not_blamed_for_kills_from_outside() -> None:
    for after_ms in (100, 1_100, 3_000, 10_000):
        model = Model(1)
        for _ in range(40):
            model.live(after_ms)
        assert model.parked() == [], after_ms


@pytest.mark.parametrize("flows", [1, 2, 21, 1_000])
@pytest.mark.parametrize("delay_ms", [1, 400, 5_000, 30_000])
def test_the_flow_that_ends_the_process_is_parked_and_no_other(flows: int, delay_ms: float) -> None:
    culprit = flows * 2 // 3
    model = Model(flows, {culprit: delay_ms})
    for starts in range(80):
        if model.live(was_killed=bool(starts)) == math.inf:
            break
    assert (model.parked(), model.running()) == ([culprit], flows - 1)


def test_two_flows_that_end_the_process_are_both_found() -> None:
    model = Model(30, {4: 1, 25: 300})
    for _ in range(80):
        if model.live() == math.inf:
            break
    assert (sorted(model.parked()), model.running()) == ([4, 25], 28)


def test_many_innocent_flows_go_on_within_seconds() -> None:
    model = Model(10_000)
    for _ in range(RECOVERIES_MAX + 1):
        model.live(500)
    assert model.live(20_000) == 20_000
    assert model.running() == 10_000


def test_a_flow_that_comes_further_is_not_suspected_any_more() -> None:
    head = make_head(1)
    for _ in range(RECOVERIES_MAX):
        quarantine.charge([head])
    assert not quarantine.is_to_be_tried(head, RECOVERIES_MAX)
    head.come_further()
    quarantine.charge([head])
    assert (head.recoveries, head.is_suspect) == (1, False)


def test_only_those_that_are_tried_are_charged_for_what_happens_meanwhile() -> None:
    tried, other = make_head(1), make_head(2)
    tried.is_suspect = True
    quarantine.charge([tried, other])
    assert (tried.recoveries, tried.strikes, other.recoveries) == (1, 1, 0)
