"""The settings of a broker."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from postroad.core.errors import ConfigError
from postroad.core.limits import MIB

from .balancing import StrategyMaker
from .breakers import BreakerConfig
from .bulkheads import BulkheadConfig
from .calls import PENDING_MAX
from .describing import check_name
from .policies import RetryPolicy
from .serializers import make_serializer

_POLICIES = {"retry": RetryPolicy, "breaker": BreakerConfig, "bulkhead": BulkheadConfig}


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times, limits and policies of a broker. Every value has a sensible default."""

    namespace: str = ""
    """Nodes of other namespaces are not seen."""
    serializer: str = "JSON"
    """`JSON`, `MsgPack` or `CBOR`; all nodes must use the same."""
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    """What others can read of this node in the registry."""

    request_timeout_s: float = 30.0
    """Time for a call that names none, and whose action names none; 0 is no limit."""
    max_call_level: int = 0
    """How deep calls within calls may go; 0 is no limit."""
    pending_max: int = PENDING_MAX
    """Calls to other nodes that wait for an answer; more are refused."""
    serving_max: int = 10_000
    """Calls of other nodes that run here at once; more are refused."""
    events_max: int = 10_000
    """Handlers of events of other nodes that run here at once; more events are dropped."""

    streams_max: int = 1_000
    """Streams that come from other nodes at once; more are refused."""
    stream_bytes_max: int = 64 * MIB
    """What may wait to be read of a stream whose sender cannot be slowed down."""
    streams_bytes_max: int = 512 * MIB
    """What may wait to be read of all streams together."""
    stream_idle_s: float = 60.0
    """How long a reader of a stream waits for a sign of life from the other node; 0 for ever."""

    retry: RetryPolicy = RetryPolicy()
    """Whether failed calls are tried again, unless the action says."""
    breaker: BreakerConfig = BreakerConfig()
    """When a node that fails is left alone, unless the action says."""
    bulkhead: BulkheadConfig = BulkheadConfig()
    """How much runs at once of each action and handler of events, unless it says."""
    validates: bool = True
    """Whether params are checked against what actions say of them."""

    heartbeat_interval_s: float = 10.0
    """How often a node shows that it lives; a little more or less, so that nodes differ."""
    heartbeat_timeout_s: float = 30.0
    """A node that was not heard for so long is lost."""
    verify_timeout_s: float = 1.0
    """How long a node may take to answer a ping before others' word is taken that it left, began a
    new life or offers less; 0 takes their word at once."""
    uses_balancer: bool = True
    """Whether brokers choose who gets a call. If not, the transporter does, if it can."""
    prefers_local: bool = True
    """Whether a service of this node wins."""
    strategy: str = "RoundRobin"
    """How one of several nodes is chosen: RoundRobin, Random, CpuUsage, Latency or Shard."""
    latency_interval_s: float = 10.0
    """How often hosts are pinged while there is a choice by Latency."""
    checks_version: bool = True
    """Whether packets of other versions of the protocol are refused."""
    tells_stacks: bool = False
    """Whether callers on other nodes are told where in the code an error was raised."""

    announce_delay_s: float = 0.05
    """Changes of services within so much time are told together."""
    start_wait_s: float = 0.5
    """The longest that `start` waits to hear of the other nodes."""
    stop_delay_s: float = 0.1
    """After it said that it offers nothing, a node still serves what is on its way."""
    stop_timeout_s: float = 5.0
    """How long calls that run may take to finish when a node stops."""

    def __post_init__(self) -> None:
        if self.namespace:
            check_name(self.namespace, "namespace")
        for name in (
            *("request_timeout_s", "heartbeat_interval_s", "heartbeat_timeout_s"),
            *("announce_delay_s", "start_wait_s", "stop_delay_s", "stop_timeout_s"),
            *("stream_idle_s", "latency_interval_s", "verify_timeout_s"),
        ):
            value = getattr(self, name)
            if not (_is_number(value) and value >= 0):
                raise ConfigError(f"{name}={value!r} must be a finite number, 0 or more")
        for name in (
            *("pending_max", "serving_max", "events_max"),
            *("streams_max", "stream_bytes_max", "streams_bytes_max"),
        ):
            if not (_is_number(getattr(self, name)) and getattr(self, name) >= 1):
                raise ConfigError(f"{name}={getattr(self, name)!r} must be at least 1")
        for name, kind in _POLICIES.items():
            if not isinstance(getattr(self, name), kind):
                raise ConfigError(f"{name} must be a {kind.__name__}, not {getattr(self, name)!r}")
        if self.stop_timeout_s <= 0:
            raise ConfigError("stop_timeout_s must be more than 0")
        make_serializer(self.serializer)
        StrategyMaker(random.Random(), default=self.strategy)
        for name in ("heartbeat_interval_s", "latency_interval_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be more than 0")
        if 0 < self.heartbeat_timeout_s <= self.heartbeat_interval_s:
            raise ConfigError(
                f"heartbeat_timeout_s={self.heartbeat_timeout_s:g} must be more than "
                f"heartbeat_interval_s={self.heartbeat_interval_s:g}"
            )


def with_settings(config: BrokerConfig, settings: Mapping[str, Any]) -> BrokerConfig:
    """A config with some settings in place of its own; raises ConfigError for names it has not."""
    known = [it.name for it in msgspec.structs.fields(BrokerConfig)]
    for name in settings:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"a broker has no setting {name!r}{hint}")
    return msgspec.structs.replace(config, **settings)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)
