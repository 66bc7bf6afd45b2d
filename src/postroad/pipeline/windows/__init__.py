"""Windows and triggers: what segments add up to over time, and when it goes on. Pure.

Workers turn segments into a `Delta` with a `DeltaMaker`; deltas of one batch are merged in any
order; `WindowState` takes the whole and tells what goes on, and which rows to store.
"""

from .aggregations import Aggregation
from .deltas import JobWindowDelta, WindowDeltaBuilder
from .extents import Extent
from .plain import decode_group, encode_group
from .plan import CompiledWindows
from .segments import InvalidSegmentError
from .state import JobWindowState

__all__ = [
    "Aggregation",
    "JobWindowDelta",
    "WindowDeltaBuilder",
    "Extent",
    "InvalidSegmentError",
    "CompiledWindows",
    "JobWindowState",
    "decode_group",
    "encode_group",
]
