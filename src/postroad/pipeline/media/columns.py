"""Columns as options have them."""

from __future__ import annotations

from collections.abc import Mapping

from postroad.core.errors import ConfigError


def check_columns(value: object) -> list[str] | None:
    """Names of columns; raises ConfigError unless it is a list of names, or nothing."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value or not all(map(_is_name, value)):
        raise ConfigError(f"option 'columns' is {value!r}; it must be a list of names")
    return list(value)


def check_types(option: str, value: object) -> dict[str, str]:
    """Types of columns by name; raises ConfigError unless it is a table of texts."""
    is_table = isinstance(value, Mapping) and all(map(_is_name, (*value, *value.values())))
    if not is_table:
        raise ConfigError(f"option {option!r} is {value!r}; it must have types by name")
    return dict(value)  # type: ignore[call-overload, no-any-return]


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)
