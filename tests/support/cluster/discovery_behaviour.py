"""The behaviour of every discovery; the tests of each kind inherit this suite.

A kind provides two sources: one that replies, and one that is unreachable at first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import pytest

from postroad.cluster.discovery import Discovery
from postroad.core import Address
from postroad.core.errors import ConfigError, UsageError
from tests.support.deadlines import DEADLINE_S, eventually

OWN = Address("127.0.0.1", 7001)
OTHER = Address("127.0.0.1", 7002)
THIRD = Address("127.0.0.1", 7003)


class Source(Protocol):
    """The source of one kind of discovery."""

    def discovery(self) -> Discovery:
        """Return a discovery that queries this source."""

    async def put(self, address: Address) -> None:
        """Add an address."""


class ChangingSource(Source, Protocol):
    """A source whose addresses change."""

    async def remove(self, address: Address) -> None:
        """Remove an address."""


class AbsentSource(ChangingSource, Protocol):
    """A source that is unreachable at first."""

    async def come_back(self) -> None:
        """Make it reachable."""


class Recorder:
    """Records the results that a discovery publishes."""

    def __init__(self) -> None:
        self.calls: list[frozenset[Address]] = []

    def __call__(self, seeds: frozenset[Address]) -> None:
        asyncio.get_running_loop()  # Raises in any other thread.
        self.calls.append(seeds)

    async def until(self, *expected: Address, timeout_s: float = DEADLINE_S) -> None:
        """Return when exactly these seeds were published last."""
        addresses = frozenset(expected)
        await eventually(
            lambda: self.calls and self.calls[-1] == addresses, f"seeds {expected}", timeout_s
        )


async def started(discovery: Discovery, name: str = "own", address: Address = OWN) -> Recorder:
    reported = Recorder()
    await discovery.start(name, address, reported)
    return reported


class Search(Protocol):
    """A discovery of seeds or cores, with the arguments of its start."""

    @property
    def search(self) -> Any:
        """The discovery."""

    async def start(self, listener: Callable[[Any], None] | None = None) -> Any:
        """Start it; return a recorder of its results, unless a listener is passed."""


class BackgroundDiscoveryBehaviour:
    """Tests of every background discovery; `make` creates one, `put` adds a node to its source."""

    finds: str
    """The plural of what it discovers."""

    async def make(self, source: Any, number: int = 1) -> Search:
        raise NotImplementedError

    async def put(self, source: Any) -> None:
        raise NotImplementedError

    async def test_empty_result_is_published(self, source: Any) -> None:
        one = await self.make(source)
        reported = await one.start()
        assert [len(call) for call in reported.calls] == [0]
        await one.search.stop()

    async def test_it_starts_once_and_may_be_stopped_at_any_time(self, source: Any) -> None:
        one = await self.make(source)
        await one.start()
        with pytest.raises(UsageError, match="twice; create a new one"):
            await one.start()
        await asyncio.gather(one.search.stop(), one.search.stop())
        await one.search.stop()
        assert not one.search.statistics().is_connected
        other = await self.make(source, 2)
        await other.search.stop()
        await other.search.stop()
        with pytest.raises(UsageError, match="create a new one"):
            await other.start()

    async def test_stop_before_start_finished_publishes_nothing_more(self, source: Any) -> None:
        await self.put(source)
        one = await self.make(source)
        calls: list[Any] = []
        start = asyncio.create_task(one.start(calls.append))
        await asyncio.sleep(0)
        reported = list(calls)
        await one.search.stop()

        await asyncio.wait_for(start, DEADLINE_S)
        assert calls == reported

    async def test_cancelled_start_stops(self, source: Any) -> None:
        one = await self.make(source)
        start = asyncio.create_task(one.start())
        await asyncio.sleep(0)
        start.cancel()

        await asyncio.wait({start})
        assert start.cancelled()
        assert "[stopped]" in repr(one.search)

    def test_bad_settings_are_rejected(self, bad_settings: Callable[[], object]) -> None:
        with pytest.raises(ConfigError):
            bad_settings()

    async def test_statistics_and_repr_show_the_state(self, source: Any) -> None:
        await self.put(source)
        one = await self.make(source)
        search = one.search
        assert not search.statistics().is_connected
        assert repr(search).startswith(f"<{type(search).__name__} ")
        assert "[not started]" in repr(search)
        await one.start()

        statistics = search.statistics()
        assert statistics.is_connected
        field = "seeds" if self.finds == "seeds" else self.finds
        assert getattr(statistics, field) == 1
        assert (statistics.changes, statistics.failures, statistics.last_error) == (1, 0, "")
        statistics.changes = 99
        assert search.statistics().changes == 1
        assert f"[running, 1 {self.finds}]" in repr(search)
        await search.stop()
        assert "[stopped]" in repr(search)

    async def test_failing_listener_is_logged(
        self, source: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(_found: object) -> None:
            raise RuntimeError("planted")

        one = await self.make(source)
        await one.start(fail)
        assert f"callback for {self.finds} failed" in caplog.text
        await one.search.stop()


class LocalDiscovery(NamedTuple):
    """A discovery that is started for the node at OWN."""

    search: Discovery

    async def start(self, listener: Callable[[Any], None] | None = None) -> Recorder:
        reported = Recorder()
        await self.search.start("own", OWN, listener or reported)
        return reported


class DiscoveryBehaviour(BackgroundDiscoveryBehaviour):
    """Tests of every discovery of seeds."""

    finds = "seeds"

    async def make(self, source: Source, number: int = 1) -> LocalDiscovery:
        return LocalDiscovery(source.discovery())

    async def put(self, source: Source) -> None:
        await source.put(OTHER)

    async def test_start_publishes_all_seeds_but_the_local_address(self, source: Source) -> None:
        await source.put(OWN)
        await source.put(OTHER)
        discovery = source.discovery()
        reported = await started(discovery)
        assert reported.calls == [{OTHER}]
        await discovery.stop()

    async def test_bad_identity_is_rejected(self, source: Source) -> None:
        for name, address in (("a/b", OWN), ("", OWN), ("own", Address("127.0.0.1", 0))):
            discovery = source.discovery()
            with pytest.raises(ConfigError):
                await started(discovery, name, address)
            await discovery.stop()


class ChangingDiscoveryBehaviour(DiscoveryBehaviour):
    """Tests of every discovery whose source can change or be unreachable."""

    async def test_changes_are_published(self, changing: ChangingSource) -> None:
        await changing.put(OTHER)
        discovery = changing.discovery()
        reported = await started(discovery)
        await changing.put(THIRD)
        await reported.until(OTHER, THIRD)
        await changing.remove(OTHER)
        await reported.until(THIRD)

        assert discovery.statistics().changes == len(reported.calls)
        await discovery.stop()

    async def test_nothing_is_published_after_stop(self, changing: ChangingSource) -> None:
        stopped, reporter = changing.discovery(), changing.discovery()
        reported = await started(stopped)
        seen = await started(reporter, "witness", Address("127.0.0.1", 7009))
        await stopped.stop()
        calls = list(reported.calls)
        await changing.put(OTHER)
        await seen.until(OTHER)

        assert reported.calls == calls
        await reporter.stop()

    async def test_source_unreachable_at_the_start(
        self, absent: AbsentSource, caplog: pytest.LogCaptureFixture
    ) -> None:
        discovery = absent.discovery()
        reported = await started(discovery)
        assert reported.calls == [frozenset()]
        assert not discovery.statistics().is_connected
        await eventually(lambda: discovery.statistics().failures > 2, "it is tried again")
        warnings = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert len(warnings) == 1, "logged once"

        await absent.come_back()
        await absent.put(OTHER)
        await reported.until(OTHER, timeout_s=20)
        assert discovery.statistics().is_connected
        assert discovery.statistics().last_error
        await discovery.stop()

    async def test_stop_while_the_source_is_unreachable(self, absent: AbsentSource) -> None:
        discovery = absent.discovery()
        await started(discovery)
        await asyncio.wait_for(discovery.stop(), DEADLINE_S)
        assert "[stopped]" in repr(discovery)
