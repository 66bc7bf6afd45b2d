"""A table of cases that one test loops over: for cases too small to be tests of their own."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Test = Callable[..., Any]


def each(*cases: Any) -> Callable[[Test], Test]:
    """Call a test with one case after the other; what fails tells its case.

    A case is the value of the test's first parameter, or a tuple with those of the first ones.
    Other parameters are fixtures, and the same for all cases.
    """
    assert cases, "a test without a case"

    def decorate(test: Test) -> Test:
        count = len(_values(cases[0]))
        fixtures = [*inspect.signature(test).parameters.values()][count:]

        @functools.wraps(test)
        def run(**given: Any) -> None:
            for case in cases:
                with naming(case):
                    test(*_values(case), **given)

        @functools.wraps(test)
        async def run_async(**given: Any) -> None:
            for case in cases:
                with naming(case):
                    await test(*_values(case), **given)

        looped: Any = run_async if inspect.iscoroutinefunction(test) else run
        looped.__signature__ = inspect.Signature(fixtures)
        return looped  # type: ignore[no-any-return]

    return decorate


def _values(case: Any) -> tuple[Any, ...]:
    # A named tuple is one value.
    return case if type(case) is tuple else (case,)


@contextmanager
def naming(case: object) -> Iterator[None]:
    """Have whatever fails inside tell its case."""
    try:
        yield
    # Outcomes of pytest, as of a missing exception, derive from BaseException.
    except BaseException as error:
        error.add_note(f"case: {case!r}")
        raise
