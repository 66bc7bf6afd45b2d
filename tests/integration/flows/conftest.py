"""Every test of flows runs twice: as it is, and with all code run anew after every suspension."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroad.flows import FlowsConfig
from tests.support.flows.nodes import FlowNodes

from .stores import make_store

__all__ = ["config", "make_store", "nodes"]


@pytest.fixture(params=[False, True], ids=["live", "reloaded"])
def config(request: pytest.FixtureRequest) -> FlowsConfig:
    return FlowsConfig(reload=request.param, retry_first_s=0.005, retry_max_s=0.02)


@pytest.fixture
async def nodes(tmp_path: Path, config: FlowsConfig) -> AsyncIterator[FlowNodes]:
    """Starts nodes, and stops them at the end."""
    nodes = FlowNodes(tmp_path, config)
    try:
        yield nodes
    finally:
        await nodes.stop()
