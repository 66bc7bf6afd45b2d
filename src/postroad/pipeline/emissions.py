"""What windows emit, as new roots of their job."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from .functions import to_segments
from .job import Segment
from .media.medium import encode_segment
from .program import Program
from .records import Attempt, FailedRoot
from .windows import Extent, encode_group


class NewRoot(msgspec.Struct, frozen=True):
    """A root that no input gave."""

    root: int
    task: str
    segment: bytes


def roots_of(program: Program, extent: Extent, now_ms: int) -> Iterator[NewRoot | FailedRoot]:
    """The segments that a trigger makes of an extent: the same ones whenever it is asked."""
    task = program.plan.by_name[extent.window].window.task
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
        emit = None if trigger.emit is None else program.find(trigger.emit)
        made = [plain] if emit is None else to_segments(emit(extent))
        encoded = [encode_segment(segment) for segment in made]
    except Exception as error:
        attempt = Attempt(0, now_ms, task, f"{type(error).__name__}: {error}"[:2_000])
        root = program.bits.root(task, "", place)
        yield FailedRoot(root, task, 0, encode_segment(plain), attempt, [], is_hopeless=True)
        return
    for ordinal, segment in enumerate(encoded):
        yield NewRoot(program.bits.root(task, "", f"{place}/{ordinal}"), task, segment)
