"""Which errors are worth another attempt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroad.core import RetryPolicy
from postroad.core.errors import ConfigError, TransactionAbortedError
from tests.support.cases import each

ABORTED = TransactionAbortedError("it took too long")


def is_busy(error: Exception) -> bool:
    return "busy" in str(error)


@each(
    (RetryPolicy(), ValueError(), True),
    (RetryPolicy(retry_on=OSError), ConnectionResetError(), True),
    (RetryPolicy(retry_on=OSError), ValueError(), False),
    (RetryPolicy(retry_on=(KeyError, TimeoutError)), TimeoutError(), True),
    (RetryPolicy(retry_on=(KeyError, TimeoutError)), IndexError(), False),
    (RetryPolicy(retry_on=is_busy), ValueError("busy"), True),
    (RetryPolicy(retry_on=is_busy), ValueError("wrong"), False),
    (RetryPolicy(give_up_on=LookupError), KeyError(), False),
    (RetryPolicy(give_up_on=LookupError), ValueError(), True),
    (RetryPolicy(give_up_on=is_busy), ValueError("busy"), False),
    # What is in both is final.
    (RetryPolicy(retry_on=OSError, give_up_on=FileNotFoundError), FileNotFoundError(), False),
    (RetryPolicy(retry_on=OSError, give_up_on=FileNotFoundError), PermissionError(), True),
    # Others have aborted it, so it says nothing about the function.
    (RetryPolicy(retry_on=ValueError), ABORTED, True),
    (RetryPolicy(retry_on=ValueError, give_up_on=TransactionAbortedError), ABORTED, False),
    # Nothing that a filter can be about.
    (RetryPolicy(retry_on=ValueError, give_up_on=Exception), asyncio.CancelledError(), True),
)
def test_errors_that_are_worth_another_attempt(
    policy: RetryPolicy, error: BaseException, is_allowed: bool
) -> None:
    assert policy.allows(error) is is_allowed


def test_a_filter_that_raises_is_logged_and_leaves_it_to_the_attempts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def ask(error: Exception) -> bool:
        raise AttributeError("no status")

    for policy in (RetryPolicy(retry_on=ask), RetryPolicy(give_up_on=ask)):
        caplog.clear()
        assert policy.allows(ValueError("x"))
        assert "ValueError('x') is tried again" in caplog.text
        assert "no status" in caplog.text


async def is_slow(error: Exception) -> bool:
    return True


@each(
    "ValueError",
    ((),),
    [ValueError],
    (("ValueError", KeyError),),
    ValueError("x"),
    int,
    BaseException,
    ((KeyError, KeyboardInterrupt),),
    is_slow,
)
def test_what_is_no_filter_is_refused(errors: Any) -> None:
    for field in ("retry_on", "give_up_on"):
        with pytest.raises(ConfigError, match=f"{field}=.* must be a"):
            RetryPolicy(**{field: errors})


def test_policies_with_the_same_filters_are_equal() -> None:
    assert RetryPolicy(retry_on=is_busy) == RetryPolicy(retry_on=is_busy)
    assert RetryPolicy(retry_on=(KeyError,)) != RetryPolicy(retry_on=(IndexError,))
