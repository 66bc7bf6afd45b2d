"""Tables of the pages: settings, and every change of a member's state."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from postroad.cluster import MemberState
from postroad.cluster.membership import TRANSITIONS, StateChangeCause
from postroad.node.keys import docstrings


def settings_table(config: type[msgspec.Struct]) -> str:
    """Names, defaults and meanings of what a class of settings holds."""
    meanings = dict(docstrings(config))
    rows = [
        (f"`{field.name}`", _told(field.default), meanings[field.name])
        for field in msgspec.structs.fields(config)
    ]
    return table(("setting", "default", "meaning"), rows)


def transitions_table() -> str:
    """What a node thinks of a member after each cause, by what it thought before."""
    states = (None, *MemberState)
    rows = [
        (cause.value, *(_after(state, cause) for state in states)) for cause in StateChangeCause
    ]
    return table(("cause", *map(state_name, states)), rows)


def state_name(state: MemberState | None) -> str:
    """A state for people."""
    return "not known" if state is None else state.name.lower()


def _after(state: MemberState | None, cause: StateChangeCause) -> str:
    key = (state, cause)
    return state_name(TRANSITIONS[key]) if key in TRANSITIONS else "-"


def _told(value: object) -> str:
    """A default; settings within settings have a table of their own."""
    if isinstance(value, msgspec.Struct):
        return "see below"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else "none"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of a page."""
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
