"""Flow conditions: where a task's output goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from postroad.core.errors import ConfigError
from postroad.pipeline.functions import Function, InvalidResultError, normalize_result
from postroad.pipeline.job import ALL, NONE, FlowAction, FlowCondition, Predicate, Segment

Resolve = Callable[[str], Function]
Test = Callable[[Any, Any], Any]


class SegmentRoute(NamedTuple):
    """Where a segment goes, and how."""

    targets: tuple[str, ...]
    segment: Segment
    retry: bool = False
    """Whether its whole root comes again instead."""


class _Condition(NamedTuple):
    test: Test
    targets: tuple[str, ...]
    excluded: frozenset[str]
    is_last: bool
    retries: bool
    transform: Function | None


class FlowRouter:
    """The flow conditions of one task."""

    def __init__(
        self,
        task: str,
        children: Sequence[str],
        conditions: Iterable[FlowCondition],
        resolve: Resolve,
    ) -> None:
        self.task = task
        self.children = tuple(children)
        mine = [
            condition
            for condition in conditions
            if condition.source == task or self._concerns(condition)
        ]
        self._normal = [
            self._compile(condition, resolve) for condition in mine if not condition.exceptions
        ]
        self._exceptional = [
            self._compile(condition, resolve) for condition in mine if condition.exceptions
        ]

    def _concerns(self, condition: FlowCondition) -> bool:
        """Whether one for all tasks is for this one: not if it names only others' followers."""
        if condition.source != ALL:
            return False
        return condition.to in (ALL, NONE) or bool(self._targets(condition.to))

    def _compile(self, condition: FlowCondition, resolve: Resolve) -> _Condition:
        transform = condition.post_transform
        return _Condition(
            _test(condition.predicate, condition.params, resolve),
            self._targets(condition.to),
            frozenset(condition.exclude_keys),
            condition.short_circuit,
            condition.action is FlowAction.RETRY,
            None if transform is None else resolve(transform),
        )

    def _targets(self, to: str | list[str]) -> tuple[str, ...]:
        if to == ALL:
            return self.children
        if to == NONE:
            return ()
        names = [to] if isinstance(to, str) else to
        return tuple(name for name in self.children if name in names)

    @property
    def is_end(self) -> bool:
        """Whether nothing follows the task."""
        return not self.children

    @property
    def is_unconditional(self) -> bool:
        """Whether everything that is returned goes to all that follow."""
        return not self._normal

    def route(self, new: Segment, old: Segment) -> SegmentRoute:
        """Where a segment goes that was made of another."""
        if not self._normal:
            return SegmentRoute(self.children, new)
        targets: set[str] = set()
        excluded: set[str] = set()
        for condition in self._normal:
            if not condition.test(new, old):
                continue
            if condition.is_last:
                return SegmentRoute(
                    condition.targets, _without(new, condition.excluded), condition.retries
                )
            targets.update(condition.targets)
            excluded |= condition.excluded
        # As they follow the task, not as the conditions name them.
        return SegmentRoute(
            tuple(name for name in self.children if name in targets), _without(new, excluded)
        )

    def route_exception(self, error: Exception, segment: Segment) -> SegmentRoute | None:
        """Where a segment goes whose function raised; None if no condition applies."""
        for condition in self._exceptional:
            if not condition.test(error, segment):
                continue
            made = segment if condition.transform is None else condition.transform(error, segment)
            if not isinstance(made, dict):
                raise InvalidResultError(
                    f"a post_transform returns a segment, not {type(made).__name__}"
                )
            return SegmentRoute(
                condition.targets, _without(made, condition.excluded), condition.retries
            )
        return None


def _without(segment: Segment, excluded: Iterable[str]) -> Segment:
    return {key: segment[key] for key in segment if key not in excluded} if excluded else segment


def _test(predicate: Predicate | None, params: dict[str, Any], resolve: Resolve) -> Test:
    """A predicate, however it is put together, as one function."""
    if predicate is None:
        return _always
    if isinstance(predicate, str):
        return partial(resolve(predicate), **params)
    match list(predicate.items()):
        case [("and", [*parts])]:
            return partial(_all_of, [_test(part, params, resolve) for part in parts])
        case [("or", [*parts])]:
            return partial(_any_of, [_test(part, params, resolve) for part in parts])
        case [("not", part)]:
            return partial(_not, _test(part, params, resolve))
        case _:
            raise ConfigError(f"a predicate is an import path, and, or, or not: {predicate!r}")


def _always(new: object, old: object) -> bool:
    return True


def _all_of(tests: Sequence[Test], new: object, old: object) -> bool:
    return all(test(new, old) for test in tests)


def _any_of(tests: Sequence[Test], new: object, old: object) -> bool:
    return any(test(new, old) for test in tests)


def _not(test: Test, new: object, old: object) -> bool:
    return not test(new, old)


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
    """Where the result of a function goes, or its exception; raises what a segment fails with."""
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
        # Nothing follows an output: a condition on its exceptions drops them.
        routes = [route] if route.retry or not router.is_end else []
    if any(route.retry for route in routes):
        raise SegmentRetryRequestedError(f"a flow condition of {router.task!r} requested a retry")
    return RoutingResult(routes, is_exceptional)
