"""The scenarios by name, and how one of them is run with a seed."""

from __future__ import annotations

from functools import partial

from postroad.testing import Scenario
from postroad.testing import run_seed as run_seed_of
from tests.simulation.brokers.scenario import run_brokers
from tests.simulation.cells.scenario import run_cells
from tests.simulation.cluster.scenario import run_cluster
from tests.simulation.durable.scenario import run_durable
from tests.simulation.flows.scenario import run_flows
from tests.simulation.guaranteed import run_guaranteed
from tests.simulation.hostile.scenario import run_hostile
from tests.simulation.services.scenario import run_services
from tests.simulation.wire.scenario import run_wire
from tests.support.tiers import SEED

PROGRAM = "python -m tests.simulation"

SCENARIOS: dict[str, Scenario] = {
    "wire": run_wire,
    "cluster": run_cluster,
    "hostile": run_hostile,
    "durable": run_durable,
    "flows": run_flows,
    "cells": run_cells,
    "services": run_services,
    "brokers": run_brokers,
    "guaranteed": run_guaranteed,
}
"""Lowest layer first."""

FIRST_SEED = 10_000 * SEED
"""Another POSTROAD_SEED gives seeds that no other has."""

run_seed = partial(run_seed_of, program=PROGRAM)
