"""Windows and triggers: what segments add up to over time, and when it goes on. Pure.

Workers turn segments into a `JobWindowDelta` with a `WindowDeltaBuilder`; deltas of one batch are
merged in any order; `JobWindowState` takes the whole, tells what goes on and which rows to store.
"""

from postroad.pipeline.windows.aggregations import Aggregation
from postroad.pipeline.windows.compiled import CompiledWindows
from postroad.pipeline.windows.deltas import JobWindowDelta, WindowDeltaBuilder
from postroad.pipeline.windows.encoding import InvalidSegmentError, decode_group, encode_group
from postroad.pipeline.windows.panes import Extent, decode_pane_window
from postroad.pipeline.windows.state import JobWindowState

__all__ = [
    "Aggregation",
    "CompiledWindows",
    "Extent",
    "InvalidSegmentError",
    "JobWindowDelta",
    "JobWindowState",
    "WindowDeltaBuilder",
    "decode_group",
    "decode_pane_window",
    "encode_group",
]
