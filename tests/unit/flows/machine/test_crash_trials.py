"""Who is blamed when processes end, over many starts of a model of one."""

from __future__ import annotations

import math

import pytest

from postroad.flows import FlowStatus
from postroad.flows.machine.failure_policy import (
    count_crash,
    defer_to_trial,
    is_convicted,
    needs_trial,
    park_convicted,
    plan_trials,
)
from postroad.flows.machine.state import FlowState

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
        at_work = [state for state in self.heads if state.status is FlowStatus.RUNNING]
        if was_killed:
            count_crash(at_work)
        for state in at_work:
            if is_convicted(state):
                park_convicted(state, self.now_ms)
        suspects = [state for state in self.heads if needs_trial(state, RECOVERIES_MAX)]
        trials = plan_trials(suspects, self.now_ms, TRIAL_MS)
        for trial in trials:
            for state in trial.states:
                defer_to_trial(state, trial.starts_ms, self.now_ms)
        # What happens when, since the start: a flow begins, or was tried for long enough.
        began = [
            (0.0, "begins", state) for state in self.heads if state.status is FlowStatus.RUNNING
        ]
        for trial in trials:
            began += [(trial.starts_ms - self.now_ms, "begins", state) for state in trial.states]
            began += [(trial.ends_ms - self.now_ms, "survives", state) for state in trial.states]
        deaths = [
            at + self.guilty[state.id]
            for at, what, state in began
            if what == "begins" and state.id in self.guilty
        ]
        end = min([killed_after_ms, *deaths])
        for at, what, state in sorted(began, key=lambda state: state[:2]):
            if at >= end:
                break
            if what == "survives":
                state.is_suspect = False
            elif state.status is FlowStatus.RETRYING:
                state.status = FlowStatus.RUNNING
                state.trials += 1
        self.now_ms += 1_000_000
        return end

    def parked(self) -> list[int]:
        return [state.id for state in self.heads if state.status is FlowStatus.PARKED]

    def running(self) -> int:
        return sum(state.status is FlowStatus.RUNNING for state in self.heads)


def make_head(id: int) -> FlowState:
    return FlowState(
        id=id,
        name="pay",
        version=1,
        status=FlowStatus.RUNNING,
        seed=b"e",
        started_ms=0,
        wake_ms=0,
    )


@pytest.mark.parametrize("after_ms", [10, 500, 999, 1_500, 2_500, 3_500])
def test_external_kills_do_not_park_flows(after_ms: float) -> None:
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
    state = make_head(1)
    for _ in range(RECOVERIES_MAX):
        count_crash([state])
    assert not needs_trial(state, RECOVERIES_MAX)
    state.reset_attempts()
    count_crash([state])
    assert (state.crash_recoveries, state.is_suspect) == (1, False)


def test_crash_during_trial_counts_only_for_tried_flows() -> None:
    tried, other = make_head(1), make_head(2)
    tried.is_suspect = True
    count_crash([tried, other])
    assert (tried.crash_recoveries, tried.crashes_alone, other.crash_recoveries) == (1, 1, 0)
