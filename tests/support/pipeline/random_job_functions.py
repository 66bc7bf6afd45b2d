"""Functions of random jobs: what they do follows from their parameters and the segment.

Workers of Spark import them from here.
"""

from __future__ import annotations

import zlib

import msgspec

from postroad.pipeline import Segment


def draw(salt: str, segment: Segment, sides: int) -> int:
    """A number that looks like chance, and is the same everywhere."""
    packed = msgspec.json.encode(segment, order="deterministic")
    return zlib.crc32(packed + salt.encode()) // 7 % sides


def work(segment: Segment, salt: str, makes: list[int], fails: int) -> list[Segment]:
    """Make some, or fail with so many in a hundred."""
    if draw(salt + "fail", segment, 100) < fails:
        raise [ValueError, LookupError][draw(salt + "type", segment, 2)](f"{salt} refuses it")
    n, count = draw(salt + "n", segment, 60), makes[draw(salt, segment, len(makes))]
    segment["trail"] = segment.get("trail", "") + salt
    return [{**segment, "n": n + ordinal, "g": "abc"[n % 3]} for ordinal in range(count)]


def work_one_by_one(segment: Segment, salt: str, makes: list[int], fails: int) -> object:
    """The same, as a generator, and with one segment as itself."""
    made = work(segment, salt, makes, fails)
    return made[0] if len(made) == 1 else iter(made)


def pass_group(key: object, segments: list[Segment], salt: str, fails: int) -> list[Segment]:
    """What comes of a segment is the same in whatever company it comes."""
    if draw(salt + "fail", {"key": key}, 100) < fails:
        raise ValueError(f"{salt} refuses the group {key}")
    return [it | {"trail": it.get("trail", "") + salt} for it in segments]


def count_group(
    key: object, segments: list[Segment], state: int | None, salt: str, fails: int
) -> tuple[list[Segment], int]:
    return pass_group(key, segments, salt, fails), (state or 0) + len(segments)


def lies(new: Segment, old: Segment, salt: str, share: int) -> bool:
    """Of so many in a hundred."""
    return draw(salt, new, 100) < share


def is_lookup(error: Exception, segment: Segment) -> bool:
    return isinstance(error, LookupError)


def confess(error: Exception, segment: Segment) -> Segment:
    return {"n": segment.get("n", 0), "error": repr(error)}
