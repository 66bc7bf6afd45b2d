"""The settings of a broker in the words and units of the original system, for others to read."""

from __future__ import annotations

from typing import Any

from .breakers import BreakerConfig
from .bulkheads import BulkheadConfig
from .config import BrokerConfig
from .describing import sendable_object
from .policies import RetryPolicy

_MILLISECONDS = 1000


def write_options(config: BrokerConfig) -> dict[str, Any]:
    """The options a broker of the original would have been made with."""
    return {
        "namespace": config.namespace,
        "serializer": config.serializer,
        "requestTimeout": config.request_timeout_s * _MILLISECONDS,
        "retryPolicy": write_retry(config.retry),
        "maxCallLevel": config.max_call_level,
        "heartbeatInterval": config.heartbeat_interval_s,
        "heartbeatTimeout": config.heartbeat_timeout_s,
        "tracking": {"enabled": True, "shutdownTimeout": config.stop_timeout_s * _MILLISECONDS},
        "disableBalancer": not config.uses_balancer,
        "registry": {
            "strategy": config.strategy,
            "preferLocal": config.prefers_local,
            "stopDelay": config.stop_delay_s * _MILLISECONDS,
        },
        "circuitBreaker": write_breaker(config.breaker),
        "bulkhead": write_bulkhead(config.bulkhead),
        "transit": {
            "maxQueueSize": config.pending_max,
            "disableVersionCheck": not config.checks_version,
        },
        "validator": config.validates,
        "metadata": sendable_object(config.metadata),
    }


def write_retry(policy: RetryPolicy) -> dict[str, Any]:
    """As actions tell it: `retryPolicy`."""
    return {
        "enabled": policy.is_enabled,
        "retries": policy.retries,
        "delay": policy.delay_s * _MILLISECONDS,
        "maxDelay": policy.delay_max_s * _MILLISECONDS,
        "factor": policy.factor,
    }


def write_breaker(breaker: BreakerConfig) -> dict[str, Any]:
    """As actions tell it: `circuitBreaker`."""
    return {
        "enabled": breaker.is_enabled,
        "threshold": breaker.threshold,
        "windowTime": breaker.window_s,
        "minRequestCount": breaker.requests_min,
        "halfOpenTime": breaker.half_open_s * _MILLISECONDS,
    }


def write_bulkhead(bulkhead: BulkheadConfig) -> dict[str, Any]:
    """As actions tell it: `bulkhead`."""
    return {
        "enabled": bulkhead.is_enabled,
        "concurrency": bulkhead.concurrency,
        "maxQueueSize": bulkhead.queue_max,
    }
