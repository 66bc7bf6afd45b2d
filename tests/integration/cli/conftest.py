"""A node for the tests of the `postroad` command, and a home without saved places."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli.home import move_home
from tests.support.cli.nodes import RunningNode, running_node


@pytest.fixture(scope="module")
def alpha(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node with a service, a flow, a consumer and a cell."""
    with running_node(tmp_path_factory.mktemp("shop")) as node:
        yield node


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own."""
    return move_home(tmp_path_factory.mktemp("home"), monkeypatch)
