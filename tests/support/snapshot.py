"""Texts that are kept in files, so that whoever changes one sees what people will see.

Run the tests with UPDATE_SNAPSHOTS=1 to write them anew, and read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

DIRECTORY = Path(__file__).parents[1] / "snapshots"


def check_snapshot(name: str, text: str) -> None:
    """Fail unless the text is as it was kept."""
    path = DIRECTORY / name
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    assert text == kept, f"{name} has changed; UPDATE_SNAPSHOTS=1 keeps the new text"
