"""The ways in which tests of flows run: in any of them a flow does the same.

At night every test runs in every way. By day it does in those that can make a difference to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from postroad.durable import MemoryDisk, MemoryStore, PostgresStore, SqliteStore, Store
from postroad.flows import FlowsConfig
from tests.support.flows.nodes import FlowNodes
from tests.support.flows.sync_form import on_stacks
from tests.support.servers.postgres import fresh_database
from tests.support.tiers import by_tier

LIVE, RELOADED, MEMORY, POSTGRES = "live", "reloaded", "memory", "postgres"
STACKS = "stacks"
# Reloaded: all code is run anew after every suspension. That matters where code has done something
# before it waits: steps, branches and sessions. Operators, clocks, results and what happens
# at a start concern the record of a flow, which is the same in both.
# Stacks: the code runs in greenlets, as that of flows does that are a plain `def`.
# PostgreSQL and memory: for what goes through transactions of the store or is read at a start.
BY_DAY = {
    "test_attributes": (LIVE, RELOADED, POSTGRES, STACKS),
    "test_branches": (LIVE, RELOADED, STACKS),
    "test_busy_flows": (LIVE, RELOADED, POSTGRES),
    "test_cancel": (LIVE, RELOADED, POSTGRES, STACKS),
    "test_children": (LIVE, RELOADED, POSTGRES, STACKS),
    "test_code_changes": (LIVE, RELOADED),
    "test_corners": (LIVE, RELOADED),
    "test_drawn_values": (LIVE, RELOADED),
    "test_flow_transactions": (LIVE, RELOADED, MEMORY, POSTGRES),
    "test_odd_code": (LIVE, RELOADED, STACKS),
    "test_reads": (LIVE, RELOADED, STACKS),
    "test_requests": (LIVE, POSTGRES),
    "test_restarts": (LIVE, POSTGRES, STACKS),
    "test_session_failures": (LIVE, RELOADED, STACKS),
    "test_sessions": (LIVE, RELOADED, POSTGRES, STACKS),
    "test_step_transactions": (LIVE, RELOADED, MEMORY, POSTGRES),
    "test_steps": (LIVE, RELOADED, STACKS),
    "test_operators": (LIVE, STACKS),
    "test_sync_flows": (LIVE, RELOADED),
    "test_unreadable": (LIVE, POSTGRES),
    # Of schedules, signals and results: what the store has to keep.
    "TestEndsInBetween": (LIVE, POSTGRES),
    "TestMissedTimes": (LIVE, POSTGRES),
    "test_signals_before_and_after_they_are_asked_for": (LIVE, POSTGRES),
    "test_queries_are_answered_by_the_code": (LIVE, POSTGRES),
    "test_results_are_there_after_a_restart": (LIVE, POSTGRES),
    "test_one_flow_per_client_id_when_many_ask_at_the_same_time": (LIVE, POSTGRES),
    "test_queued_flows_can_be_killed_and_survive_a_restart": (LIVE, POSTGRES),
}
# They hold a commit and read meanwhile, for which one waits in memory.
NEVER_IN_MEMORY = (
    "test_not_durable_yet",
    "test_room_that_is_made_before_the_flow_is_there_is_used",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "way" not in metafunc.fixturenames:
        return
    names = [metafunc.module.__name__.rpartition(".")[2], metafunc.function.__name__]
    names += [metafunc.cls.__name__] if metafunc.cls else []
    by_day = [BY_DAY[name] for name in names if name in BY_DAY] or [(LIVE,)]
    by_night = [LIVE, RELOADED, POSTGRES, STACKS]
    if not set(names).intersection(NEVER_IN_MEMORY):
        by_night.append(MEMORY)
    metafunc.parametrize("way", by_tier(test=list(by_day[0]), nightly=by_night))


@pytest.fixture
def config(way: str) -> FlowsConfig:
    return FlowsConfig(
        replay_every_time=way == RELOADED, retry_initial_delay_s=0.005, retry_max_delay_s=0.02
    )


@pytest.fixture(autouse=True)
def form(request: pytest.FixtureRequest) -> Iterator[None]:
    """Has the code run as it does in the way of the test."""
    is_on_stacks = "way" in request.fixturenames and request.getfixturevalue("way") == STACKS
    with on_stacks() if is_on_stacks else nullcontext():
        yield


@pytest.fixture
def store_of(way: str, tmp_path: Path) -> Iterator[Callable[[str], Store]]:
    """Opens the stores of nodes, again and again on the same data."""
    if way == POSTGRES:
        with fresh_database() as dsn:
            yield lambda name: PostgresStore(dsn, name)
    elif way == MEMORY:
        disks: dict[str, MemoryDisk] = {}
        yield lambda name: MemoryStore(disks.setdefault(name, MemoryDisk()))
    else:
        yield lambda name: SqliteStore(tmp_path / f"{name}.db")


@pytest.fixture
async def nodes(
    tmp_path: Path, config: FlowsConfig, store_of: Callable[[str], Store]
) -> AsyncIterator[FlowNodes]:
    """Starts nodes, and stops them at the end."""
    nodes = FlowNodes(tmp_path, config, store_of)
    try:
        yield nodes
    finally:
        await nodes.stop()
