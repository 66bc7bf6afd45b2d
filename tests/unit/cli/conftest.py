"""What holds for every test of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own: whoever runs the tests may have saved places, and nodes that run."""
    path = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(path / "config"))
    for name in ("POSTROAD_URL", "POSTROAD_TOKEN", "POSTROAD_CONTEXT", "POSTROAD_CA", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return path
