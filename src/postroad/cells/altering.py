"""Structs made of others, without looking again at what was looked at before.

`msgspec.structs.replace` calls `__post_init__`, which checks every field of a struct. Of a
message that is sent on only a field or two differ, by values that are right by construction, and
each domain on its way makes two or three such structs: there the checks are most of the cost.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)

# It sets a field of a frozen struct. Here nobody else has seen that struct yet.
_set = msgspec.structs.force_setattr


def copy_with(struct: S, field: str, value: object) -> S:
    """A copy with another value, which the caller knows to be valid, in one field."""
    made: S = struct.__copy__()  # type: ignore[attr-defined]  # Left out of the stubs.
    _set(made, field, value)
    return made


def copy_with_two(struct: S, field: str, value: object, other: str, other_value: object) -> S:
    """A copy with other values in two fields."""
    made = copy_with(struct, field, value)
    _set(made, other, other_value)
    return made
