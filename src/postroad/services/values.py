"""Finding a value inside of params or meta by its path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def value_at(source: Any, path: str, default: Any = None) -> Any:
    """The value at a path such as `user.id` or `items.0.id`; the default if there is none.

    A key that has dots itself comes first, as in the original system.
    """
    if isinstance(source, Mapping) and path in source:
        return source[path]
    for part in path.replace("[", ".").replace("]", "").split("."):
        if isinstance(source, Mapping) and part in source:
            source = source[part]
        elif _is_item(source, part):
            source = source[int(part)]
        else:
            return default
    return source


def _is_item(source: Any, part: str) -> bool:
    is_number = part.isascii() and part.isdecimal() and len(part) < 10
    return isinstance(source, list | tuple) and is_number and int(part) < len(source)
