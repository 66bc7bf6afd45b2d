"""Nodes with mail for the tests that want nothing special of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.durable.mail_pairs import Station, running_station


@pytest.fixture
async def alpha(tmp_path: Path) -> AsyncIterator[Station]:
    """A node that knows beta, if the test wants one."""
    async with running_station("alpha", tmp_path) as station:
        yield station


@pytest.fixture
async def beta(tmp_path: Path, alpha: Station) -> AsyncIterator[Station]:
    """A node that knows alpha."""
    async with running_station("beta", tmp_path, alpha) as station:
        alpha.meet(station)
        yield station
