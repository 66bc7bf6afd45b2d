"""Every setting of a node, as tables."""

from __future__ import annotations

from collections.abc import Iterator

from postroad.cli.config import tell_default
from postroad.node.keys import Key, sections, settings_keys

from .tables import table


def settings_tables() -> str:
    """A table for each table of the file, below its name and what it is about."""
    return "\n\n".join(_tables())


def _tables() -> Iterator[str]:
    for section, about in sections().items():
        keys = [it for it in settings_keys().values() if it.section == section]
        if keys:
            rows = [_row(it) for it in keys]
            told = table(("setting", "default", "type", "meaning"), rows)
            yield f"### {section}\n\n{about}\n\n{told}"


def _row(key: Key) -> tuple[str, ...]:
    default = tell_default(key)
    shown = default.strip("()") if default.startswith("(") else f"`{default}`"
    name = key.name.rpartition(".")[2]
    return (f"`{name}`", shown, key.type_name, key.meaning.replace("|", "\\|"))
