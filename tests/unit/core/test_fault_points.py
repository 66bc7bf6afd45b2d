"""Named fault points."""

from collections.abc import Iterator

import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import UsageError


@pytest.fixture(autouse=True)
def own_points(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep what these tests declare away from the points of the program."""
    monkeypatch.setattr(faults, "_points", {})
    yield


def test_a_point_does_nothing_unless_it_is_armed() -> None:
    point = faults.declare_fault_point("test.quiet")
    point.hit(anything=1)
    assert repr(point) == "<FaultPoint test.quiet>"

    point = faults.declare_fault_point("test.loud")
    reached: list[dict[str, object]] = []
    with faults.arm_fault_point("test.loud", lambda **details: reached.append(details)) as armed:
        assert armed is point
        assert repr(point) == "<FaultPoint test.loud armed>"
        point.hit(address="a:1")
    point.hit(address="b:1")
    assert reached == [{"address": "a:1"}]


def test_an_action_may_raise_and_the_point_is_disarmed_after() -> None:
    point = faults.declare_fault_point("test.crash")

    def crash() -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), faults.arm_fault_point("test.crash", crash):
        point.hit()
    point.hit()


def test_names_are_declared_once_and_sorted() -> None:
    faults.declare_fault_point("test.once")
    with pytest.raises(UsageError, match=r"'test\.once' is already declared"):
        faults.declare_fault_point("test.once")

    faults.declare_fault_point("test.b")
    faults.declare_fault_point("test.a")
    assert faults.fault_point_names() == ["test.a", "test.b", "test.once"]


def test_a_point_is_armed_by_name_and_by_one_test_at_a_time() -> None:
    with pytest.raises(UsageError, match="declared: none"), faults.arm_fault_point("test.x", print):
        pass
    faults.declare_fault_point("test.a")
    with (
        pytest.raises(UsageError, match=r"declared: test\.a"),
        faults.arm_fault_point("test.x", print),
    ):
        pass

    with faults.arm_fault_point("test.a", print):
        with (
            pytest.raises(UsageError, match="already armed"),
            faults.arm_fault_point("test.a", print),
        ):
            pass
        # The inner attempt must not have disarmed what the outer one armed.
        with (
            pytest.raises(UsageError, match="already armed"),
            faults.arm_fault_point("test.a", print),
        ):
            pass
