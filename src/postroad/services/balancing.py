"""Strategies: which of several equal endpoints gets a call.

They are named as in the original system, and do what they do there, with three exceptions. A key
of the shard strategy whose node is broken goes to the next on the ring, where the original fails.
Those that look at load begin at a random place, so that not every caller favours the same idle
node. And the shard strategy has a second layout, see `ring.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from postroad.core.errors import ConfigError

from .endpoints import Endpoint, Strategy
from .js_text import js_text
from .ring import Layout, Ring, lay_out
from .values import value_at

AnyEndpoint = Endpoint[Any]
Endpoints = tuple[AnyEndpoint, ...]


class Dice(Protocol):
    """A source of chance, such as `random.Random`."""

    def randrange(self, stop: int, /) -> int:
        """A number from 0 up to, not including, `stop`."""
        ...


class RoundRobin:
    """Each in turn."""

    def __init__(self) -> None:
        self._turn = 0

    def select(
        self, available: Endpoints, every: Endpoints, params: Any, meta: Mapping[str, Any]
    ) -> AnyEndpoint:
        """The one after the last."""
        turn = self._turn if self._turn < len(available) else 0
        self._turn = turn + 1
        return available[turn]


class RandomChoice:
    """Any, by chance."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice

    def select(
        self, available: Endpoints, every: Endpoints, params: Any, meta: Mapping[str, Any]
    ) -> AnyEndpoint:
        """Any of them."""
        return available[self._dice.randrange(len(available))]


class _LeastLoaded:
    """Looks at a few and takes the first that is idle, else the least loaded."""

    def __init__(
        self,
        dice: Dice,
        load_of: Callable[[AnyEndpoint], float | None],
        *,
        sample_count: int,
        low: float,
    ) -> None:
        self._dice = dice
        self._load_of = load_of
        self._sample_count = sample_count
        self._low = low

    def select(
        self, available: Endpoints, every: Endpoints, params: Any, meta: Mapping[str, Any]
    ) -> AnyEndpoint:
        """The first idle one of the sample, else its least loaded, else any."""
        best: AnyEndpoint | None = None
        least = 0.0
        for endpoint in self._sample(available):
            load = self._load_of(endpoint)
            if load is None:
                continue
            if load < self._low:
                return endpoint
            if best is None or load < least:
                best, least = endpoint, load
        return best or available[self._dice.randrange(len(available))]

    def _sample(self, available: Endpoints) -> Iterator[AnyEndpoint]:
        count, size = self._sample_count, len(available)
        if 0 < count < size:
            return (available[self._dice.randrange(size)] for _ in range(count))
        start = self._dice.randrange(size)
        return (available[(start + step) % size] for step in range(size))


class CpuUsage(_LeastLoaded):
    """The node whose processor has least to do, as far as its heartbeats tell."""

    def __init__(self, dice: Dice, *, sample_count: int = 3, low_cpu_usage: float = 10) -> None:
        super().__init__(dice, _cpu_of, sample_count=sample_count, low=low_cpu_usage)


class Latencies:
    """How long pings to each host took, on average over the last few. Times in milliseconds."""

    def __init__(self, collect_count: int = 5) -> None:
        self._collect_count = collect_count
        self._history: dict[str, deque[float]] = {}
        self._averages: dict[str, float] = {}

    def record(self, hostname: str, elapsed_ms: float) -> None:
        """A ping to a node on the host was answered."""
        history = self._history.setdefault(hostname, deque(maxlen=self._collect_count))
        history.append(elapsed_ms)
        self._averages[hostname] = sum(history) / len(history)

    def average(self, hostname: str) -> float | None:
        """Milliseconds there and back; None before the first answer."""
        return self._averages.get(hostname)

    def forget(self, hostname: str) -> None:
        """The last node of a host is gone."""
        self._history.pop(hostname, None)
        self._averages.pop(hostname, None)


class Latency(_LeastLoaded):
    """The node on the host that answers pings soonest."""

    def __init__(
        self,
        dice: Dice,
        latencies: Latencies,
        *,
        sample_count: int = 5,
        low_latency_ms: float = 10,
    ) -> None:
        def latency_of(endpoint: AnyEndpoint) -> float | None:
            return latencies.average(endpoint.node.hostname)

        super().__init__(dice, latency_of, sample_count=sample_count, low=low_latency_ms)


class Shard:
    """The same node for the same key, which is in the params, or in the meta after a `#`.

    Calls without a key go anywhere.
    """

    def __init__(
        self,
        dice: Dice,
        *,
        shard_key: str | None = None,
        vnodes: int = 10,
        ring_size: int | None = None,
        layout: Layout = Layout.EQUAL,
    ) -> None:
        self._dice = dice
        self._shard_key = shard_key
        self._make: Callable[[list[str]], Ring] = lambda names: lay_out(
            names, vnodes=vnodes, ring_size=ring_size, layout=layout
        )
        # Both belong to one tuple of endpoints; another tuple means that something changed.
        self._every: Endpoints = ()
        self._ring: Ring | None = None
        self._available: Endpoints = ()
        self._by_node: dict[str, AnyEndpoint] = {}

    def select(
        self, available: Endpoints, every: Endpoints, params: Any, meta: Mapping[str, Any]
    ) -> AnyEndpoint:
        """The endpoint the key belongs to, or the next on the ring while that one is broken."""
        key = self._key(params, meta)
        if key is None:
            return available[self._dice.randrange(len(available))]
        if self._available is not available:
            self._available = available
            self._by_node = {endpoint.node.id: endpoint for endpoint in reversed(available)}
        owners = self._ring_of(every).owners(js_text(key))
        return next(self._by_node[owner] for owner in owners if owner in self._by_node)

    def _key(self, params: Any, meta: Mapping[str, Any]) -> Any:
        path = self._shard_key
        if not path:
            return None
        return value_at(meta, path[1:]) if path.startswith("#") else value_at(params, path)

    def _ring_of(self, every: Endpoints) -> Ring:
        if self._ring is None or self._every is not every:
            self._every = every
            self._ring = self._make(sorted({it.node.id for it in every}, key=_js_order))
        return self._ring


class StrategyMaker:
    """Makes strategies by the names and options that services give.

    Args:
        dice: all chance.
        latencies: what is known of hosts, shared by all lists.
        default, options: for lists whose services name none.
    """

    def __init__(
        self,
        dice: Dice,
        latencies: Latencies | None = None,
        *,
        default: str = "RoundRobin",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._dice = dice
        self.latencies = latencies or Latencies()
        self._default = default
        self._options = options or {}
        self._makers: dict[str, Callable[[Mapping[str, Any]], Strategy]] = {
            "roundrobin": lambda options: RoundRobin(),
            "random": lambda options: RandomChoice(dice),
            "cpuusage": self._cpu_usage,
            "latency": self._latency,
            "shard": self._shard,
        }
        self.default()

    def default(self) -> Strategy:
        """A strategy for a list whose services name none."""
        return self.make(self._default, self._options)

    def make(self, name: str, options: Mapping[str, Any] | None = None) -> Strategy:
        """A strategy by its name, in any case of letters; raises ConfigError for what is none."""
        maker = self._makers.get(name.lower().replace("-", "").replace("_", ""))
        if maker is None:
            valid = "RoundRobin, Random, CpuUsage, Latency, Shard"
            raise ConfigError(f"strategy {name!r} is none of {valid}")
        return maker(self._options if options is None else options)

    def _cpu_usage(self, options: Mapping[str, Any]) -> Strategy:
        return CpuUsage(
            self._dice,
            sample_count=int(_number(options, "sampleCount", 3)),
            low_cpu_usage=_number(options, "lowCpuUsage", 10),
        )

    def _latency(self, options: Mapping[str, Any]) -> Strategy:
        return Latency(
            self._dice,
            self.latencies,
            sample_count=int(_number(options, "sampleCount", 5)),
            low_latency_ms=_number(options, "lowLatency", 10),
        )

    def _shard(self, options: Mapping[str, Any]) -> Strategy:
        key = options.get("shardKey")
        if key is not None and not isinstance(key, str):
            raise ConfigError(f"strategy option shardKey must be a text, not {key!r:.60}")
        size = int(_number(options, "ringSize", 0))
        return Shard(
            self._dice,
            shard_key=key,
            vnodes=int(_number(options, "vnodes", 10)),
            ring_size=size or None,
            layout=_layout(options.get("layout", Layout.EQUAL.value)),
        )


def _js_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _cpu_of(endpoint: AnyEndpoint) -> float | None:
    return endpoint.node.cpu


def _layout(said: Any) -> Layout:
    try:
        return Layout(said)
    except ValueError:
        valid = ", ".join(it.value for it in Layout)
        raise ConfigError(f"strategy option layout={said!r:.60} is none of {valid}") from None


def _number(options: Mapping[str, Any], name: str, default: float) -> float:
    value = options.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise ConfigError(f"strategy option {name}={value!r:.60} must be a number, 0 or more")
    return value
