"""Nodes of one cluster, for each test its own."""

from collections.abc import AsyncIterator

import pytest

from tests.support.services.nodes import Nodes


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with Nodes() as nodes:
        yield nodes
