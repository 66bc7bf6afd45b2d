"""A home for tests of the `postroad` command that nobody has saved anything in."""

from __future__ import annotations

from pathlib import Path

import pytest


def move_home(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Whoever runs the tests may have saved places, and say where their own nodes are."""
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(path / "config"))
    for name in ("POSTROAD_URL", "POSTROAD_TOKEN", "POSTROAD_CONTEXT", "POSTROAD_CA", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return path
