"""What holds for every test of the command line."""

from pathlib import Path

import pytest

from tests.support.cli.home import move_home


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own."""
    return move_home(tmp_path_factory.mktemp("home"), monkeypatch)
