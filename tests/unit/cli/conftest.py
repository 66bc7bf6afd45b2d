"""What holds for every test of the command line."""

import sys
from pathlib import Path

import pytest

from tests.support.cli.home import move_home


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own; where commands look for programs is forgotten."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    return move_home(tmp_path_factory.mktemp("home"), monkeypatch)
