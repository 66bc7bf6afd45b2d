"""Nodes with something of everything, and their operators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .operating import Operator, operated, two_operated


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Operator]:
    """Of a node that is alone."""
    async with operated(tmp_path) as operator:
        yield operator


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Operator, Operator]]:
    async with two_operated(tmp_path) as pair:
        yield pair


@pytest.fixture
def alpha(pair: tuple[Operator, Operator]) -> Operator:
    """Of the first of two nodes."""
    return pair[0]


@pytest.fixture
def beta(pair: tuple[Operator, Operator]) -> Operator:
    return pair[1]
