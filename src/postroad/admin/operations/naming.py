"""What operators call things, compared with what they are called."""

from __future__ import annotations

from typing import Any

from postroad.admin.errors import nearest, nearest_or_all


def misnamed(said: Any, schema: dict[str, Any] | None) -> list[str]:
    """Those of the parameters that a schema does not know, each in a sentence."""
    known = (schema or {}).get("properties")
    if known is None or not isinstance(said, dict):
        return []
    return [
        f"no parameter is called {name!r}{nearest(name, known) or nearest_or_all('', known) + '.'}"
        for name in said
        if name not in known
    ]
