"""What everybody does who tells where the cores are, whatever they ask. Each kind inherits this.

A kind brings a source: sites for domains to run at, and cores that others have entered there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import pytest

from postroad.cells import Role
from postroad.cells.addresses import DomainInfo
from postroad.cells.core_discovery import CoreDiscovery, CoreLocation
from postroad.core import Address
from postroad.core.errors import ConfigError
from tests.support.cluster.discovery_behaviour import BackgroundDiscoveryBehaviour
from tests.support.deadlines import DEADLINE_S, eventually


class Site(NamedTuple):
    """Where a domain can run."""

    name: str
    locations: CoreDiscovery
    endpoints: tuple[Address, ...]

    @property
    def search(self) -> CoreDiscovery:
        return self.locations

    async def start(
        self,
        listener: Callable[[Any], None] | None = None,
        role: Role = Role.SATELLITE,
        zone: str | None = None,
    ) -> Recorder:
        recorder = Recorder()
        domain = DomainInfo(self.name, role, zone)
        await self.locations.start(domain, self.endpoints, listener or recorder)
        return recorder

    async def start_core(self, zone: str | None = None) -> Recorder:
        return await self.start(role=Role.CORE, zone=zone)

    def location(self, zone: str | None = None) -> CoreLocation:
        """What others shall be told of it if it is a core."""
        return CoreLocation(self.name, self.endpoints, zone)


class Source(Protocol):
    """Where one kind of locations looks."""

    async def site(self, name: str) -> Site:
        """A place for a domain, with locations that ask this source."""

    async def put(self, name: str, zone: str | None = None) -> CoreLocation:
        """Have a core known to the source that nobody here runs."""


class ChangingSource(Source, Protocol):
    """A source whose answers change; what was put can be put again with another zone."""

    async def move(self, name: str) -> CoreLocation:
        """Have a core that was put known at another place."""

    async def spoil(self, name: str) -> None:
        """Make unreadable what is known of a core that was put."""

    async def remove(self, name: str) -> None:
        """Make the source forget a core that was put."""


class Recorder:
    """Remembers what was told."""

    def __init__(self) -> None:
        self.calls: list[dict[str, CoreLocation]] = []

    def __call__(self, cores: Mapping[str, CoreLocation]) -> None:
        asyncio.get_running_loop()  # Raises in any other thread.
        self.calls.append(dict(cores))

    async def until(self, *expected: CoreLocation, timeout_s: float = DEADLINE_S) -> None:
        """Return when exactly these are the cores told last."""
        locations = by_name(*expected)
        await eventually(
            lambda: self.calls and self.calls[-1] == locations, f"{expected} are told", timeout_s
        )


def by_name(*cores: CoreLocation) -> dict[str, CoreLocation]:
    return {core.name: core for core in cores}


class LocationsBehaviour(BackgroundDiscoveryBehaviour):
    """For everybody."""

    finds = "cores"

    async def make(self, source: Source, number: int = 1) -> Site:
        return await source.site(f"S{number}")

    async def put(self, source: Source) -> None:
        await source.put("C1")

    async def test_cores_are_published_before_start_returns_and_immutable(
        self, source: Source
    ) -> None:
        first, second = await source.put("C1", "A"), await source.put("C2")
        satellite = await source.site("S1")
        assert isinstance(satellite.locations, CoreDiscovery)
        held: list[Mapping[str, CoreLocation]] = []
        await satellite.start(held.append)

        assert held == [by_name(first, second)]
        assert held[0]["C1"].zone == "A"
        with pytest.raises(TypeError):
            del held[0]["C1"]  # type: ignore[attr-defined]
        await satellite.locations.stop()

    async def test_core_that_stopped_is_not_registered(self, source: Source) -> None:
        site = await source.site("C1")
        await site.start_core()
        await asyncio.gather(site.locations.stop(), site.locations.stop())
        statistics = site.locations.statistics()
        assert (statistics.is_connected, statistics.is_registered) == (False, False)

    async def test_core_that_cannot_be_dialed_is_refused(self, source: Source) -> None:
        own = Address("127.0.0.1", 7001)
        for number, endpoints in enumerate([(), (own._replace(port=0),), (own,) * 17]):
            site = await source.site(f"C{number}")
            with pytest.raises(ConfigError):
                await site._replace(endpoints=endpoints).start_core()
            await site.locations.stop()

    async def test_satellite_needs_no_endpoints(self, source: Source) -> None:
        site = (await source.site("S1"))._replace(endpoints=())
        recorder = await site.start()
        assert recorder.calls == [{}]
        assert not site.locations.statistics().is_registered
        await site.locations.stop()


class ChangingLocationsBehaviour(LocationsBehaviour):
    """For those whose source can change."""

    async def test_satellite_receives_added_and_removed_cores(self, source: ChangingSource) -> None:
        satellite, first = await source.site("S1"), await source.site("C1")
        recorder = await satellite.start()
        await first.start_core("A")
        await recorder.until(first.location("A"))
        second = await source.site("C2")
        await second.start_core()
        await recorder.until(first.location("A"), second.location())
        await first.locations.stop()
        await recorder.until(second.location())

        assert satellite.locations.statistics().changes == len(recorder.calls)
        await satellite.locations.stop()
        await second.locations.stop()

    async def test_core_receives_other_cores_but_not_itself(self, source: ChangingSource) -> None:
        sites = [await source.site(name) for name in ("C1", "C2", "C3")]
        tellers = [await site.start_core() for site in sites]
        for site, recorder in zip(sites, tellers, strict=True):
            await recorder.until(*(other.location() for other in sites if other is not site))
            assert not any(site.name in call for call in recorder.calls)
            assert site.locations.statistics().is_registered
            assert site.locations.statistics().registrations == 1
        for site in sites:
            await site.locations.stop()

    async def test_satellite_is_never_published(self, source: ChangingSource) -> None:
        one, two, core = [await source.site(name) for name in ("S1", "S2", "C1")]
        recorder = await one.start()
        await two.start(zone="A")
        await core.start_core()
        await recorder.until(core.location())

        assert recorder.calls == [{}, by_name(core.location())]
        assert not two.locations.statistics().is_registered
        assert two.locations.statistics().registrations == 0
        for site in (one, two, core):
            await site.locations.stop()

    async def test_changed_zone_is_published(self, source: ChangingSource) -> None:
        before = await source.put("C1", "A")
        satellite = await source.site("S1")
        recorder = await satellite.start()
        after = await source.put("C1", "B")
        await recorder.until(after)
        last = await source.put("C1")
        await recorder.until(last)

        assert recorder.calls == [by_name(before), by_name(after), by_name(last)]
        await satellite.locations.stop()

    async def test_changed_endpoints_are_published(self, source: ChangingSource) -> None:
        before = await source.put("C1")
        satellite = await source.site("S1")
        recorder = await satellite.start()
        after = await source.move("C1")
        await recorder.until(after)

        assert before.endpoints != after.endpoints
        await satellite.locations.stop()

    async def test_unreadable_entry_keeps_a_known_core(self, source: ChangingSource) -> None:
        location = await source.put("C1")
        satellite = await source.site("S1")
        recorder = await satellite.start()
        await source.spoil("C1")
        await eventually(lambda: satellite.locations.statistics().skipped, "it is counted")
        other = await source.put("C2")
        await recorder.until(location, other)
        assert recorder.calls == [by_name(location), by_name(location, other)]

        await source.remove("C1")
        await recorder.until(other)
        await satellite.locations.stop()

    async def test_unreadable_entry_is_skipped_until_readable(
        self, source: ChangingSource, caplog: pytest.LogCaptureFixture
    ) -> None:
        other = await source.put("C1")
        await source.put("C2")
        await source.spoil("C2")
        satellite = await source.site("S1")
        recorder = await satellite.start()
        assert recorder.calls == [by_name(other)]
        assert satellite.locations.statistics().skipped == 1
        assert "C2" in caplog.text

        mended = await source.put("C2")
        await recorder.until(other, mended)
        await satellite.locations.stop()

    async def test_nothing_is_published_after_stop(self, source: ChangingSource) -> None:
        stopped, witness = await source.site("S1"), await source.site("S2")
        recorder, seen = await stopped.start(), await witness.start()
        await stopped.locations.stop()
        core = await source.put("C1")
        await seen.until(core)

        assert recorder.calls == [{}]
        await witness.locations.stop()
