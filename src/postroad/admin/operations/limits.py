"""Parameters that several operations have."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1_000)]
"""How many at most."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
First: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=3_600)]


class CountView(msgspec.Struct, frozen=True, kw_only=True):
    """How many it was done to."""

    count: int
