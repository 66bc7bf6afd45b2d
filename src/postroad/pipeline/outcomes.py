"""What becomes of one call of a function: routes, or the exception that its segment failed with."""

from __future__ import annotations

from typing import NamedTuple

from .flow import SegmentRoute, FlowRouter
from .functions import normalize_result
from .job import Segment


class SegmentRetryRequestedError(Exception):
    """A flow condition wants the whole root to come again."""


class RoutingResult(NamedTuple):
    """What a call made, with where that goes."""

    routes: list[SegmentRoute]
    is_from_exception: bool = False
    """Whether it was made of an exception."""


def route_result(
    router: FlowRouter, segment: Segment, result: object, raised: Exception | None = None
) -> RoutingResult:
    """Where what a task made of a segment goes.

    Args:
        router: of the task.
        segment: what its function was called with.
        result: what it returned.
        raised: what it raised instead.

    Raises:
        Exception: the segment failed with it.
    """
    is_exceptional = False
    try:
        if raised is not None:
            raise raised
        routes = [router.route(new, segment) for new in normalize_result(result)]
    except Exception as error:
        route = router.route_exception(error, segment)
        if route is None:
            raise
        is_exceptional = True
        # An output has nothing behind it: what is said about its exceptions drops them.
        routes = [route] if route.retry or not router.is_end else []
    if any(route.retry for route in routes):
        raise SegmentRetryRequestedError(f"a flow condition of {router.task!r} wants it to come again")
    return RoutingResult(routes, is_exceptional)
