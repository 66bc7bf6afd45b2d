"""Functions, predicates and decoders that do everything functions should not do, and the rest.

What they do follows from the segment alone. A segment has an `n`, which is a number, unless
one of these took it away.
"""

from __future__ import annotations

import traceback
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from postroad.pipeline import Segment
from postroad.pipeline.connectors.connector import decode_segment
from postroad.pipeline.functions import Function


def same(segment: Segment) -> Segment:
    return segment


def nothing(segment: Segment) -> None:
    """Drop it."""


def none_of_it(segment: Segment) -> list[Segment]:
    return []


def halves(segment: Segment) -> list[Segment]:
    return [{**segment, "n": segment["n"] // 2}, {**segment, "n": segment["n"] // 2 + 1}]


def count_down(segment: Segment) -> tuple[Segment, ...]:
    return tuple({**segment, "n": n} for n in range(segment["n"] % 4))


def twice(segment: Segment) -> list[Segment]:
    return [segment, segment]


def twice_and_changed(segment: Segment) -> list[Segment]:
    other = {**segment, "copy": True}
    segment["n"] += 10
    return [segment, other, segment]


def change(segment: Segment) -> Segment:
    segment["n"] += 1
    return segment


def mark(segment: Segment, mark: str) -> Segment:
    segment["marks"] = segment.get("marks", "") + mark
    return segment


def lose(segment: Segment) -> Segment:
    if segment["n"] % 3 == 0:
        del segment["n"]
    return segment


def spoil(segment: Segment) -> Segment:
    return {**segment, "n": "text"} if segment["n"] % 3 == 1 else segment


def refuse_odd(segment: Segment) -> Segment:
    if segment["n"] % 2:
        raise ValueError(f"{segment['n']} is odd")
    return segment


def change_and_refuse(segment: Segment) -> Segment:
    segment["spoilt"] = segment["n"]
    segment["n"] += 1
    if segment["n"] % 3 == 0:
        raise TimeoutError("not yet")
    return segment


def refuse_with_cause(segment: Segment) -> Segment:
    try:
        return refuse_odd(segment)
    except ValueError as error:
        raise RuntimeError("because") from error


class Ended(StopIteration):
    """One that looks like the end of something, with what it has to say."""


def stop(segment: Segment) -> Segment:
    if segment["n"] % 3 == 0:
        raise StopIteration(segment["n"])
    if segment["n"] % 3 == 1:
        raise Ended(segment["n"])
    return segment


def nonsense(segment: Segment) -> object:
    mapping: Mapping[str, Any] = MappingProxyType(segment)
    kinds = [7, "text", b"bytes", [segment, 7], mapping, object(), [None], False, {}, segment]
    return kinds[segment["n"] % len(kinds)]


def generate(segment: Segment) -> Iterator[Segment]:
    yield {**segment, "made": 1}
    segment["n"] += 1
    yield segment


def generate_and_refuse(segment: Segment) -> Iterator[Segment]:
    yield segment
    if segment["n"] % 2:
        raise ValueError("too late")
    if segment["n"] % 3:
        raise StopIteration


def special(segment: Segment) -> object:
    ordered = OrderedDict(segment)
    kinds = [ordered, [ordered, segment], iter([segment]), {1: segment}.values(), ordered]
    return kinds[segment["n"] % len(kinds)]


FUNCTIONS: Mapping[str, Function] = {
    f"functions:{it.__name__}": it
    for it in (
        same,
        nothing,
        none_of_it,
        halves,
        count_down,
        twice,
        twice_and_changed,
        change,
        mark,
        lose,
        spoil,
        refuse_odd,
        change_and_refuse,
        refuse_with_cause,
        stop,
        nonsense,
        generate,
        generate_and_refuse,
        special,
    )
}


# Predicates: of what was made and what it was made of; then of exceptions.


def is_even(new: Segment, old: Segment) -> bool:
    return bool(new["n"] % 2 == 0)


def is_small(new: Segment, old: Segment, limit: int = 4) -> bool:
    return bool(new["n"] < limit)


def was_even(new: Segment, old: Segment) -> bool:
    return bool(old["n"] % 2 == 0)


def is_changed(new: Segment, old: Segment) -> bool:
    return new is not old


def complain(new: Segment, old: Segment) -> bool:
    if new["n"] % 4 == 3:
        raise LookupError("a predicate that cannot tell")
    return bool(new["n"] % 4)


def stop_predicate(new: object, old: Segment) -> bool:
    if old.get("n", 0) == 2:
        raise StopIteration("of a predicate")
    return True


PREDICATES: Mapping[str, Function] = {
    f"predicates:{it.__name__}": it
    for it in (is_even, is_small, was_even, is_changed, complain, stop_predicate)
}


def is_timeout(error: Exception, segment: Segment) -> bool:
    return isinstance(error, TimeoutError)


def is_ended(error: Exception, segment: Segment) -> bool:
    return isinstance(error, Ended)


def is_told(error: Exception, segment: Segment) -> bool:
    if not error.args:
        raise LookupError("an exception that says nothing")
    return True


def was_small(error: Exception, segment: Segment) -> bool:
    return bool(segment["n"] < 4)


HANDLED: Mapping[str, Function] = {
    f"handled:{it.__name__}": it
    for it in (is_timeout, is_ended, is_told, was_small, stop_predicate)
}


def describe(error: Exception, segment: Segment) -> Segment:
    return {"n": -1, "error": repr(error), "of": repr(segment.get("n"))}


def locate(error: Exception, segment: Segment) -> Segment:
    """Tell in which function it was raised."""
    return {**segment, "in": traceback.extract_tb(error.__traceback__)[-1].name}


def blame(error: Exception, segment: Segment) -> Segment:
    segment["blamed"] = type(error).__name__
    return segment


def give_up(error: Exception, segment: Segment) -> object:
    return None if segment.get("n", 0) else [segment]


def fail_again(error: Exception, segment: Segment) -> Segment:
    return {"n": segment["n"] // (segment["n"] % 2)}


TRANSFORMS: Mapping[str, Function] = {
    f"transforms:{it.__name__}": it for it in (describe, locate, blame, give_up, fail_again)
}


# Of windows: a predicate of a trigger.


def is_third(segment: Segment) -> bool:
    return bool(segment["n"] % 3 == 0)


TABLE: Mapping[str, Function] = {
    **FUNCTIONS,
    **PREDICATES,
    **HANDLED,
    **TRANSFORMS,
    "triggers:is_third": is_third,
}


# Outputs that refuse, and raws that are no segments.


def is_unwritable(segment: Segment) -> bool:
    return segment.get("n") in (1, 5, -1)


UNKEEPABLE = b"unkeepable"
STOPPING = b"stopping"


def decode_oddly(raw: bytes) -> Segment:
    if raw == UNKEEPABLE:
        return {"n": 2**70}
    if raw == STOPPING:
        raise StopIteration("no more")
    return decode_segment(raw)
