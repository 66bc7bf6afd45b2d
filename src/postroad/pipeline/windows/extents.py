"""What a trigger emits. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from postroad.pipeline.job import TriggerType


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a window, of one group, over one stretch of time.

    Window, group, lower bound and firing say which one it is, for ever.
    """

    window: str
    group: Any
    lower: float | None
    """Where it begins, in seconds; None in a global window."""
    upper: float | None
    """Where it ends; itself no part of it."""
    value: Any
    """What the segments add up to."""
    segments: int
    """How many they are."""
    firing: int
    """How often it was emitted, this time included; in sessions numbers may be left out."""
    trigger: TriggerType
    trigger_index: int
    """Where in the job's list the trigger is."""
