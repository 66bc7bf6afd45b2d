"""Two nodes with mail for the tests that want nothing special of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.durable.mail_pairs import Pair, Station, running_pair


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    """Alpha and beta, which know each other."""
    async with running_pair(tmp_path) as pair:
        yield pair


@pytest.fixture
def alpha(pair: Pair) -> Station:
    return pair.alpha


@pytest.fixture
def beta(pair: Pair) -> Station:
    return pair.beta
