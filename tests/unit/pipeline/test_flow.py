"""Where what a task makes goes next."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.pipeline import FlowAction, FlowCondition, Segment
from postroad.pipeline.functions import Function, InvalidResultError
from postroad.pipeline.routing import FlowRouter, SegmentRoute

CHILDREN = ("a", "b", "c")


def is_even(new: Segment, old: Segment) -> bool:
    return bool(new["n"] % 2 == 0)


def is_above(new: Segment, old: Segment, limit: int) -> bool:
    return bool(new["n"] > limit)


def is_value_error(error: Exception, segment: Segment) -> bool:
    return isinstance(error, ValueError)


def describe(error: Exception, segment: Segment) -> Segment:
    return {"error": str(error), **segment}


def to_text(error: Exception, segment: Segment) -> str:
    return "no segment"


FUNCTIONS: dict[str, Function] = {
    f.__name__: f for f in (is_even, is_above, is_value_error, describe, to_text)
}


def router(*conditions: dict[str, Any]) -> FlowRouter:
    """A router of the task `task`."""
    made = [FlowCondition(**{"source": "task", **it}) for it in conditions]
    return FlowRouter("task", CHILDREN, made, FUNCTIONS.__getitem__)


def targets(it: FlowRouter, n: int) -> tuple[str, ...]:
    return it.route({"n": n}, {}).targets


def test_without_conditions_everything_goes_everywhere() -> None:
    plain = router()
    assert plain.is_unconditional
    assert plain.route({"n": 1}, {}) == SegmentRoute(CHILDREN, {"n": 1})
    assert plain.route_exception(ValueError(), {"n": 1}) is None


def test_conditions_add_up_in_the_order_of_the_tasks() -> None:
    it = router(
        {"to": ["c"], "predicate": "is_even"},
        {"to": ["b", "a"], "params": {"limit": 5}, "predicate": "is_above"},
    )
    assert not it.is_unconditional
    assert targets(it, 1) == ()
    assert targets(it, 2) == ("c",)
    assert targets(it, 7) == ("a", "b")
    assert targets(it, 8) == ("a", "b", "c")


def test_a_short_circuit_decides_alone() -> None:
    it = router(
        {"to": "none", "predicate": "is_even", "short_circuit": True},
        {"to": ["a"]},
    )
    assert targets(it, 2) == ()
    assert targets(it, 1) == ("a",)


def test_predicates_are_put_together() -> None:
    both = {"and": ["is_even", {"not": "is_above"}]}
    it = router({"to": "all", "predicate": {"or": [both, "is_above"]}})
    with pytest.raises(TypeError, match="limit"):
        # The parameters are for each of them.
        targets(it, 2)
    it = router({"to": "all", "predicate": {"or": [{"and": ["is_even"]}, {"not": "is_even"}]}})
    assert targets(it, 1) == targets(it, 2) == CHILDREN


def test_predicates_that_are_none() -> None:
    predicates: list[Any] = [{}, {"xor": []}, {"and": "is_even"}, {"and": [], "or": []}]
    for predicate in predicates:
        with pytest.raises(ConfigError, match="a predicate is"):
            router({"to": "all", "predicate": predicate})


def test_keys_are_left_out_on_the_way() -> None:
    it = router({"to": ["a"], "exclude_keys": ["secret"]}, {"to": ["b"], "exclude_keys": ["n"]})
    segment = {"n": 1, "secret": 2, "rest": 3}
    assert it.route(segment, {}) == SegmentRoute(("a", "b"), {"rest": 3})
    assert segment == {"n": 1, "secret": 2, "rest": 3}, "the segment itself stays as it is"


def test_exceptions_have_their_own_conditions() -> None:
    it = router(
        {
            "to": ["b"],
            "exceptions": True,
            "predicate": "is_value_error",
            "post_transform": "describe",
            "short_circuit": True,
        }
    )
    assert it.is_unconditional
    assert it.route_exception(ValueError("no"), {"n": 1}) == SegmentRoute(
        ("b",), {"error": "no", "n": 1}
    )
    assert it.route_exception(KeyError("no"), {"n": 1}) is None


def test_what_is_made_of_an_exception_is_a_segment() -> None:
    it = router({"to": ["b"], "exceptions": True, "post_transform": "to_text"})
    with pytest.raises(InvalidResultError, match="not str"):
        it.route_exception(ValueError(), {})


def test_a_condition_may_want_everything_again() -> None:
    it = router(
        {"to": "none", "predicate": "is_even", "short_circuit": True, "action": FlowAction.RETRY},
        {"to": "all"},
    )
    assert it.route({"n": 2}, {}).retry
    assert not it.route({"n": 1}, {}).retry


def test_one_for_all_tasks_is_only_for_those_it_can_lead_from() -> None:
    elsewhere = router({"source": "all", "to": ["x"], "short_circuit": True})
    assert elsewhere.is_unconditional
    assert targets(elsewhere, 1) == CHILDREN
    here = router({"source": "all", "to": ["x", "b"]})
    assert targets(here, 1) == ("b",)
    other = router({"source": "other", "to": "none"})
    assert targets(other, 1) == CHILDREN
