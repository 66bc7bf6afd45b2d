"""What every discovery does, whatever it asks. Each kind inherits this suite.

A kind brings two sources: one that answers, and one that is away until it comes back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import pytest

from postroad.cluster.discovery import Discovery
from postroad.core import Address
from postroad.core.errors import ConfigError, UsageError
from tests.support.deadlines import DEADLINE_S, eventually

OWN = Address("127.0.0.1", 7001)
OTHER = Address("127.0.0.1", 7002)
THIRD = Address("127.0.0.1", 7003)


class Source(Protocol):
    """Where one kind of discovery looks."""

    def discovery(self) -> Discovery:
        """A discovery that asks this source."""

    async def put(self, address: Address) -> None:
        """Make an address known to the source."""


class ChangingSource(Source, Protocol):
    """A source whose answers change."""

    async def remove(self, address: Address) -> None:
        """Make the source forget an address."""


class AbsentSource(ChangingSource, Protocol):
    """A source that does not answer yet."""

    async def come_back(self) -> None:
        """Make it answer."""


class Told:
    """Remembers what a discovery told."""

    def __init__(self) -> None:
        self.calls: list[frozenset[Address]] = []

    def __call__(self, contacts: frozenset[Address]) -> None:
        asyncio.get_running_loop()  # Raises in any other thread.
        self.calls.append(contacts)

    async def until(self, *expected: Address, timeout_s: float = DEADLINE_S) -> None:
        """Return when exactly these are the contacts told last."""
        wanted = frozenset(expected)
        await eventually(
            lambda: self.calls and self.calls[-1] == wanted, f"contacts {expected}", timeout_s
        )


async def started(discovery: Discovery, name: str = "own", address: Address = OWN) -> Told:
    told = Told()
    await discovery.start(name, address, told)
    return told


class DiscoveryBehaviour:
    """For every discovery."""

    async def test_contacts_are_told_before_start_returns(self, source: Source) -> None:
        await source.put(OTHER)
        discovery = source.discovery()
        told = await started(discovery)

        assert told.calls == [{OTHER}]
        await discovery.stop()

    async def test_a_source_that_knows_nobody_is_told_too(self, source: Source) -> None:
        discovery = source.discovery()
        told = await started(discovery)

        assert told.calls == [frozenset()]
        await discovery.stop()

    async def test_the_own_address_is_never_told(self, source: Source) -> None:
        await source.put(OWN)
        await source.put(OTHER)
        discovery = source.discovery()
        told = await started(discovery)

        assert told.calls == [{OTHER}]
        await discovery.stop()

    async def test_stop_may_be_called_at_any_time(self, source: Source) -> None:
        discovery = source.discovery()
        await discovery.stop()
        await discovery.stop()
        with pytest.raises(UsageError, match="make a new one"):
            await discovery.start("own", OWN, Told())

    async def test_stop_may_be_called_twice_at_a_time(self, source: Source) -> None:
        discovery = source.discovery()
        await started(discovery)

        await asyncio.gather(discovery.stop(), discovery.stop())
        await discovery.stop()
        assert not discovery.statistics().is_connected

    async def test_stop_before_start_finished(self, source: Source) -> None:
        await source.put(OTHER)
        discovery = source.discovery()
        told = Told()
        start = asyncio.create_task(discovery.start("own", OWN, told))
        await asyncio.sleep(0)
        calls = list(told.calls)
        await discovery.stop()

        await asyncio.wait_for(start, DEADLINE_S)
        assert told.calls == calls

    async def test_a_cancelled_start_stops(self, source: Source) -> None:
        discovery = source.discovery()
        start = asyncio.create_task(discovery.start("own", OWN, Told()))
        await asyncio.sleep(0)
        start.cancel()

        await asyncio.wait({start})
        assert start.cancelled()
        assert "[stopped]" in repr(discovery)

    async def test_it_starts_once(self, source: Source) -> None:
        discovery = source.discovery()
        await started(discovery)
        with pytest.raises(UsageError, match="started before"):
            await started(discovery)
        await discovery.stop()

    @pytest.mark.parametrize(
        ("name", "address"), [("a/b", OWN), ("", OWN), ("own", Address("127.0.0.1", 0))]
    )
    async def test_bad_identity_is_refused(
        self, source: Source, name: str, address: Address
    ) -> None:
        discovery = source.discovery()
        with pytest.raises(ConfigError):
            await started(discovery, name, address)
        await discovery.stop()

    def test_bad_settings_are_refused(self, bad_settings: Callable[[], object]) -> None:
        with pytest.raises(ConfigError):
            bad_settings()

    async def test_statistics(self, source: Source) -> None:
        await source.put(OTHER)
        discovery = source.discovery()
        assert not discovery.statistics().is_connected
        await started(discovery)

        statistics = discovery.statistics()
        assert statistics.is_connected
        assert (statistics.contacts, statistics.changes, statistics.failures) == (1, 1, 0)
        assert statistics.last_error == ""
        statistics.changes = 99
        assert discovery.statistics().changes == 1
        await discovery.stop()

    async def test_repr_tells_the_state(self, source: Source) -> None:
        await source.put(OTHER)
        discovery = source.discovery()
        assert repr(discovery).startswith(f"<{type(discovery).__name__} ")
        assert "[not started]" in repr(discovery)
        await started(discovery)
        assert "[running, 1 contacts]" in repr(discovery)
        await discovery.stop()
        assert "[stopped]" in repr(discovery)

    async def test_a_failing_listener_is_logged(
        self, source: Source, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(_contacts: frozenset[Address]) -> None:
            raise RuntimeError("planted")

        discovery = source.discovery()
        await discovery.start("own", OWN, fail)
        assert "the listener of contacts failed" in caplog.text
        await discovery.stop()


class ChangingDiscoveryBehaviour(DiscoveryBehaviour):
    """For every discovery whose source can change or be away."""

    async def test_changes_are_told(self, changing: ChangingSource) -> None:
        await changing.put(OTHER)
        discovery = changing.discovery()
        told = await started(discovery)
        await changing.put(THIRD)
        await told.until(OTHER, THIRD)
        await changing.remove(OTHER)
        await told.until(THIRD)

        assert discovery.statistics().changes == len(told.calls)
        await discovery.stop()

    async def test_nothing_is_told_after_stop(self, changing: ChangingSource) -> None:
        stopped, witness = changing.discovery(), changing.discovery()
        told = await started(stopped)
        seen = await started(witness, "witness", Address("127.0.0.1", 7009))
        await stopped.stop()
        calls = list(told.calls)
        await changing.put(OTHER)
        await seen.until(OTHER)

        assert told.calls == calls
        await witness.stop()

    async def test_a_source_that_is_away_at_the_start(
        self, absent: AbsentSource, caplog: pytest.LogCaptureFixture
    ) -> None:
        discovery = absent.discovery()
        told = await started(discovery)
        assert told.calls == [frozenset()]
        assert not discovery.statistics().is_connected
        await eventually(lambda: discovery.statistics().failures > 2, "it is tried again")
        warnings = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert len(warnings) == 1, "it is said once"

        await absent.come_back()
        await absent.put(OTHER)
        await told.until(OTHER, timeout_s=20)
        assert discovery.statistics().is_connected
        assert discovery.statistics().last_error
        await discovery.stop()

    async def test_stop_while_the_source_is_away(self, absent: AbsentSource) -> None:
        discovery = absent.discovery()
        await started(discovery)
        await asyncio.wait_for(discovery.stop(), DEADLINE_S)
        assert "[stopped]" in repr(discovery)
