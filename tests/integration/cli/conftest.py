"""A node for the tests of the `postroad` command, and a home without saved places."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli_nodes import RunningNode, running_node


@pytest.fixture(scope="session")
def alpha(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node with a service, a flow, a consumer and a cell."""
    with running_node(tmp_path_factory.mktemp("shop")) as node:
        yield node


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Whoever runs the tests may have saved places, and nodes that run."""
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(path / "config"))
    for name in ("POSTROAD_URL", "POSTROAD_TOKEN", "POSTROAD_CONTEXT", "POSTROAD_CA", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return path
