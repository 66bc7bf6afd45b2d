"""Ways: everything that is known before a call about how an endpoint is reached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from .breakers import BreakerConfig
from .config import BrokerConfig
from .context import Context
from .policies import RetryPolicy, choose_timeout
from .policy_forms import read_breaker, read_retry
from .schema import ActionInfo

Handler = Callable[[Context], Awaitable[Any]]
PlainHandler = Callable[[Context], Any]
Fallback = Callable[[Context, BaseException], Any]

# What nearly all actions give: none of it can be awaited, or is a stream.
AT_ONCE = frozenset({type(None), bool, int, float, str, bytes, dict, list, tuple})


def is_awaitable(result: Any) -> bool:
    """Whether a method that seemed to give its result at once wants to be waited for."""
    return type(result) not in AT_ONCE and isinstance(result, Awaitable)


class Way:
    """How calls of one action get to one node, or are run at this one.

    Attributes:
        run: makes the call.
        plain: the same without waiting, for actions of this node that never wait.
        timeout_s: time for a call whose caller names none; 0 is no limit.
        retry: what is done when it fails.
        breaker: when the endpoint is left alone.
        fallback: gives a result when all else failed.
        stays_here: whether calls never leave this node, also where the transporter balances.
        is_simple: whether there is nothing to do besides `run`.
    """

    __slots__ = (
        "breaker",
        "fallback",
        "is_simple",
        "plain",
        "retry",
        "run",
        "stays_here",
        "timeout_s",
    )

    def __init__(
        self,
        run: Handler,
        *,
        plain: PlainHandler | None = None,
        timeout_s: float,
        retry: RetryPolicy,
        breaker: BreakerConfig,
        fallback: Fallback | None = None,
        stays_here: bool = False,
    ) -> None:
        self.run = run
        self.plain = plain
        self.timeout_s = timeout_s
        self.retry = retry
        self.breaker = breaker
        self.fallback = fallback
        self.stays_here = stays_here
        self.is_simple = not (retry.is_enabled or breaker.is_enabled or fallback)


def way_of(
    info: ActionInfo,
    run: Handler,
    config: BrokerConfig,
    *,
    plain: PlainHandler | None = None,
    fallback: Fallback | None = None,
    stays_here: bool = False,
) -> Way:
    """The way to an endpoint with the policies its action asks for.

    Raises:
        ConfigError: they make no sense.
    """
    return Way(
        run,
        plain=plain,
        timeout_s=_timeout_of(info, config),
        retry=read_retry(info.definition.get("retryPolicy"), config.retry),
        breaker=read_breaker(info.definition.get("circuitBreaker"), config.breaker),
        fallback=fallback,
        stays_here=stays_here,
    )


def usual_way(info: ActionInfo, run: Handler, config: BrokerConfig) -> Way:
    """The way to an endpoint whose policies make no sense."""
    timeout_s = _timeout_of(info, config)
    return Way(run, timeout_s=timeout_s, retry=config.retry, breaker=config.breaker)


def _timeout_of(info: ActionInfo, config: BrokerConfig) -> float:
    return choose_timeout(None, info.timeout_s, config.request_timeout_s)
