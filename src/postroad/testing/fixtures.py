"""Fixtures for pytest: `pytest_plugins = ["postroad.testing.fixtures"]` in a conftest.py.

    def test_restart(sim):
        alpha = sim.add("alpha", serve)

A test that fails prints its seed, the command that runs it again with that seed, and the log.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator

import pytest

from postroad.testing.simulation.cluster import SimCluster
from postroad.testing.simulation.network import MemoryNetwork
from postroad.testing.simulation.simulation import ManualClock

_RUN = pytest.StashKey[SimCluster]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--sim-seed`."""
    parser.getgroup("postroad").addoption(
        "--sim-seed",
        type=int,
        default=None,
        help="seed of the fixture `sim`; by default each test has one of its own, always the same",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add seed, replay command and log to the report of a failed test."""
    report = yield
    sim = item.stash.get(_RUN, None)
    if report.failed and sim is not None:
        replay = f"python -m pytest '{item.nodeid}' --sim-seed {sim.seed}"
        report.sections.append((f"simulation with seed {sim.seed}", str(sim.log)))
        report.sections.append(("to run it again", replay))
    if call.when == "teardown" and sim is not None:
        del item.stash[_RUN]
    return report


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock at 0 that the test advances."""
    return ManualClock()


@pytest.fixture
def sim(request: pytest.FixtureRequest) -> Iterator[SimCluster]:
    """A cluster whose seed is `--sim-seed`, or derived from the name of the test."""
    option = request.config.getoption("--sim-seed", default=None)
    seed = zlib.crc32(request.node.name.encode()) if option is None else int(option)
    with SimCluster(seed) as cluster:
        request.node.stash[_RUN] = cluster
        yield cluster


@pytest.fixture
def memory_network(sim: SimCluster) -> MemoryNetwork:
    """The network of the fixture `sim`."""
    return sim.network
