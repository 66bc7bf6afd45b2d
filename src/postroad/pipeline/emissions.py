"""What windows emit, as new roots of their job."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from .functions import normalize_result
from .job import Segment
from .media.medium import encode_segment
from .program import CompiledJob
from .records import SegmentAttempt, FailedRoot
from .windows import Extent, encode_group


class EmittedRoot(msgspec.Struct, frozen=True):
    """A root that no input gave."""

    root: int
    task: str
    segment: bytes


def emit_roots(program: CompiledJob, extent: Extent, now_ms: int) -> Iterator[EmittedRoot | FailedRoot]:
    """The segments that a trigger makes of an extent: the same ones whenever it is asked."""
    task = program.windows.by_name[extent.window].window.task
    trigger = program.job.triggers[extent.trigger_index]
    place = f"{extent.window}/{encode_group(extent.group).hex()}/{extent.lower}/{extent.firing}"
    plain: Segment = {
        "window": extent.window,
        "group": extent.group,
        "lower": extent.lower,
        "upper": extent.upper,
        "value": extent.value,
        "segments": extent.segments,
    }
    try:
        emit = None if trigger.emit is None else program.resolve(trigger.emit)
        made = [plain] if emit is None else normalize_result(emit(extent))
        encoded = [encode_segment(segment) for segment in made]
    except Exception as error:
        attempt = SegmentAttempt(0, now_ms, task, f"{type(error).__name__}: {error}"[:2_000])
        root = program.ack_ids.root(task, "", place)
        yield FailedRoot(root, task, 0, encode_segment(plain), attempt, [], is_permanent=True)
        return
    for ordinal, segment in enumerate(encoded):
        yield EmittedRoot(program.ack_ids.root(task, "", f"{place}/{ordinal}"), task, segment)
