"""Nodes of one cluster, for each test its own."""

from collections.abc import AsyncIterator

import pytest

from tests.support.services.nodes import Nodes
from tests.support.services.stream_nodes import Pair, pair_of


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with Nodes() as nodes:
        yield nodes


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with pair_of() as pair:
        yield pair
