"""Flows go on after any crash as if there had been none, and never with code that does not fit."""

import random
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from postroad.flows import FlowContext
from postroad.flows.machine import replay as replay_module
from postroad.flows.machine import state_machine
from postroad.flows.machine.commands import FlowCommand
from postroad.flows.machine.coroutine import FlowCoroutine
from postroad.flows.machine.events import BufferedSignal
from postroad.flows.machine.history import HistoryEntry
from postroad.flows.machine.replay import ReplayCursor, replay
from postroad.flows.sessions import flow_sessions
from postroad.flows.sessions.flow_sessions import FlowSessions
from postroad.flows.sessions.session import BufferedMessage
from tests.property.flow_programs import Program, programs
from tests.property.flow_worlds import check_always, check_changed, check_everywhere, check_patched
from tests.support.tiers import by_tier

# At night thousands of flows crash everywhere.
pytestmark = pytest.mark.timeout(600)

Check = Callable[[Program, st.DataObject], None]
Plant = Callable[[pytest.MonkeyPatch], None]

whatever_happens = settings(
    max_examples=by_tier(quick=10, test=40, nightly=1_000),
    suppress_health_check=[HealthCheck.too_slow],
    report_multiple_bugs=False,
)


@given(programs, st.data())
@whatever_happens
def test_flow_goes_on_from_everywhere_as_if_nothing_had_been(
    program: Program, draw: st.DataObject
) -> None:
    check_everywhere(program, draw)


@given(programs, st.data())
@whatever_happens
def test_flow_may_be_loaded_before_everything_that_happens(
    program: Program, draw: st.DataObject
) -> None:
    check_always(program, draw)


@given(programs, st.data())
@whatever_happens
def test_program_that_does_not_fit_its_record_is_parked(
    program: Program, draw: st.DataObject
) -> None:
    check_changed(program, draw)


@given(programs, st.data())
@whatever_happens
def test_patch_in_between_is_no_difference(program: Program, draw: st.DataObject) -> None:
    check_patched(program, draw)


# The checks find what they are there for.


def plant_time_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    def hurry(code: FlowCoroutine, cursor: ReplayCursor, move_time: Callable[[int], None]) -> None:
        replay(code, cursor, lambda now_ms: None)

    monkeypatch.setattr(state_machine, "replay", hurry)


def plant_forgotten_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_sessions, "_restore_entry", lambda end, record: None)


def plant_lost_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    recall = FlowSessions.restore

    def forget(
        self: FlowSessions,
        entries: Sequence[HistoryEntry],
        buffered: Iterable[tuple[int, BufferedMessage]],
        signals: Iterable[BufferedSignal],
    ) -> None:
        recall(self, entries, (), ())

    monkeypatch.setattr(FlowSessions, "restore", forget)


def plant_other_chances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlowContext, "random", lambda self: random.Random(id(self)))


def plant_blind_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "_compare", lambda ask, record: [])


def plant_patches_that_are_always_new(monkeypatch: pytest.MonkeyPatch) -> None:
    has_next = ReplayCursor.is_next

    def always(self: ReplayCursor, command: FlowCommand) -> bool:
        return has_next(self, command) or not self.is_exhausted

    monkeypatch.setattr(ReplayCursor, "is_next", always)


@pytest.mark.parametrize(
    ("check", "plant"),
    [
        (check_everywhere, plant_time_that_stands_still),
        (check_always, plant_time_that_stands_still),
        (check_everywhere, plant_forgotten_sessions),
        (check_always, plant_lost_mail),
        (check_everywhere, plant_other_chances),
        (check_changed, plant_blind_comparison),
        (check_patched, plant_patches_that_are_always_new),
    ],
)
def test_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, check: Check, plant: Plant) -> None:
    plant(monkeypatch)

    @given(programs, st.data())
    @settings(whatever_happens, phases=[Phase.generate], max_examples=500)
    def search(program: Program, draw: st.DataObject) -> None:
        check(program, draw)

    with pytest.raises(AssertionError):
        search()
