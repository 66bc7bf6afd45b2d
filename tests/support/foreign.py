"""Files of somebody else, on machines where tests run as root and on those where they do not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

NOBODY = 65_534


def give_away(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """Have files belong to somebody else than whoever runs this, from now on."""
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    else:
        # Then all that this user has made is of somebody else.
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
