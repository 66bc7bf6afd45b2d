"""Clock, timeline, log and failures: the parts without a loop."""

import pytest

from postroad.core.errors import UsageError
from postroad.testing import (
    CRASH_EXIT_CODE,
    EventLog,
    LivenessFailure,
    ManualClock,
    SafetyFailure,
    Simulation,
    Timeline,
    require,
)


def test_clock_moves_by_hand() -> None:
    clock = ManualClock(5.0)
    assert clock() == clock.now == 5.0
    assert clock.advance(1.5) == clock() == 6.5
    clock.now = 1.0
    assert clock() == 1.0
    assert repr(clock) == "<ManualClock 1.000000 s>"
    with pytest.raises(UsageError, match="back"):
        clock.advance(-1)


def test_require_fails_with_the_exit_code_of_safety() -> None:
    assert (CRASH_EXIT_CODE, LivenessFailure.exit_code, SafetyFailure.exit_code) == (127, 128, 129)
    require(True, "holds")
    with pytest.raises(SafetyFailure, match="broken"):
        require(False, "broken")


def test_log_has_columns_and_one_line_for_each_event() -> None:
    clock = ManualClock()
    log = EventLog(clock)
    log.add("alpha", "started")
    clock.advance(1.25)
    log.add("network", "partition", "alpha and beta")
    assert log.lines == [
        "    0.000000  alpha     started",
        "    1.250000  network   partition   alpha and beta",
    ]
    assert str(log) == "\n".join(log.lines)

    log = EventLog(ManualClock())
    log.add("a", "b", "one\ntwo")
    assert log.lines == ["    0.000000  a         b           one | two"]

    log = EventLog(ManualClock(), lines_max=2)
    for number in range(5):
        log.add("a", "b", str(number))
    assert [line[-1] for line in log.lines] == ["3", "4"]
    assert str(log).startswith("(3 earlier lines left out)\n")

    log = EventLog(ManualClock())
    log.add("a", "b", f"{object()!r} 0x10")
    assert log.lines[0].endswith("<object object at 0x...> 0x10")


def test_time_that_stands_still() -> None:
    timeline = Timeline(actions_max=100)

    def again() -> None:
        timeline.after(0.0, again)

    again()
    with pytest.raises(LivenessFailure, match="endless loop"):
        timeline.run(until=1.0)


def test_parts_of_a_simulation_have_separate_random_sources() -> None:
    one, same, other = Simulation(1), Simulation(1), Simulation(2)
    first = one.rng_for("network").random()
    one.rng.random()
    assert one.rng_for("network").random() == first == same.rng_for("network").random()
    assert first != one.rng_for("disk").random()
    assert first != other.rng_for("network").random()

    simulation = Simulation(1)
    simulation.timeline.run(until=2.0)
    assert (simulation.now, simulation.actions) == (2.0, 0)
    simulation.use_clock(lambda: 7.0, lambda: 3)
    simulation.log.add("a", "b")
    assert (simulation.now, simulation.actions) == (7.0, 3)
    assert "7.000000" in simulation.log.lines[0]
