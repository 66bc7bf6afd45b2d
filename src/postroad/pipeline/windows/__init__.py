"""Windows and triggers: what segments add up to over time, and when it goes on. Pure.

Workers turn segments into a `Delta` with a `DeltaMaker`; deltas of one batch are merged in any
order; `WindowState` takes the whole and tells what goes on, and which rows to store.
"""

from .aggregations import Aggregation
from .deltas import Delta, DeltaMaker
from .extents import Extent
from .plain import decode_group, encode_group
from .plan import WindowPlan
from .segments import UnfitSegment
from .state import WindowState

__all__ = [
    "Aggregation",
    "Delta",
    "DeltaMaker",
    "Extent",
    "UnfitSegment",
    "WindowPlan",
    "WindowState",
    "decode_group",
    "encode_group",
]
