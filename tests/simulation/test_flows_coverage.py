"""Every scenario of flows is played, in the simulator and by processes, and nothing is made up."""

import ast
import importlib
import inspect
import re

import pytest

from postroad.core import fault_points as faults
from tests.simulation import test_flows, test_flows_faults, test_flows_troubles
from tests.simulation.flows.coverage import COVERAGE
from tests.simulation.flows.plan import POINTS
from tests.support.flows import kill_scenarios as flow_scenarios
from tests.support.source_tree import ROOT

EXPECTED = {
    *(f"S{number}" for number in range(1, 12)),
    *(f"R{number}" for number in range(1, 15)),
    *(f"F{number}" for number in range(1, 17)),
    *(f"P{number}" for number in range(1, 11)),
}
OF_MAIL = {"S10", "R12"}
"""A bridge that is not made, and a store from a backup: no flow has a part in them."""


def test_both_tables_are_about_all_scenarios() -> None:
    assert set(COVERAGE) == set(flow_scenarios.ALL) == EXPECTED - OF_MAIL


def test_each_has_a_fault_point_at_which_banks_are_killed() -> None:
    killed = {point for point, _ in test_flows_faults.CASES}
    for id, cover in COVERAGE.items():
        assert cover.points, id
        assert set(cover.points) <= killed <= set(faults.fault_point_names()), id


def test_each_fault_point_of_flows_is_of_one() -> None:
    assert set(POINTS) <= {point for cover in COVERAGE.values() for point in cover.points}


@pytest.mark.parametrize("id", COVERAGE)
def test_what_is_named_exists(id: str) -> None:
    cover = COVERAGE[id]
    assert cover.checks
    for name in cover.checks:
        module, _, function = name.partition(".")
        assert callable(
            getattr(importlib.import_module(f"tests.simulation.flows.{module}"), function)
        )
    for name in cover.tests:
        module, _, function = name.partition(".")
        assert callable(getattr(importlib.import_module(f"tests.simulation.{module}"), function))
        assert function.startswith(("test_", "plant_"))


def test_each_planted_bug_is_looked_for() -> None:
    looked_for = {bug.name for bug in test_flows.BUGS}
    planted = {name for name in vars(test_flows) if name.startswith("plant_")}
    named = {
        name.partition(".")[2]
        for cover in COVERAGE.values()
        for name in cover.tests
        if name.startswith("test_flows.")
    }
    assert named <= planted == looked_for


def test_stories_say_what_they_are_about() -> None:
    for name, function in inspect.getmembers(test_flows_troubles, inspect.isfunction):
        if name.startswith("test_"):
            ids = re.findall(r"\b[SRFP]\d+\b", function.__doc__ or "")
            assert ids, name
            assert all(f"test_flows_troubles.{name}" in COVERAGE[id].tests for id in ids), name


def test_each_is_played_by_processes() -> None:
    killed = {
        id for kills in flow_scenarios.KILLS.values() for kill in kills for id in kill.ids.split()
    }
    assert killed | flow_scenarios.TROUBLES == set(flow_scenarios.ALL)
    # Without importing it: that needs no process to be possible here.
    source = ast.parse((ROOT / "tests/chaos/test_flow_troubles.py").read_text())
    tests = [node for node in source.body if isinstance(node, ast.AsyncFunctionDef)]
    docstrings = " ".join(
        ast.get_docstring(test) or "" for test in tests if test.name.startswith("test_")
    )
    assert set(re.findall(r"\b[SRFP]\d+\b", docstrings)) == flow_scenarios.TROUBLES
