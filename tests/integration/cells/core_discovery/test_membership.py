"""Cores among real members: those that are silent for a while, die, or leave."""

from __future__ import annotations

import asyncio
import signal

import pytest

from postroad.cells import Role
from postroad.cells.addresses import DomainInfo
from postroad.cells.core_discovery import CoreLocation, MembershipCoreDiscovery
from postroad.cluster import MembershipConfig, MembershipEventType, MemberState, events
from postroad.cluster.membership import NameConflictLost
from postroad.core import Address
from postroad.core.errors import ConfigError, UsageError
from tests.support.cells.child_processes import core_member
from tests.support.cells.core_discovery_behavior import Recorder, by_name
from tests.support.cluster import nodes
from tests.support.deadlines import DEADLINE_S, eventually

PATIENT = MembershipConfig(probe_interval_s=0.2, probe_timeout_s=0.8, indirect_probe_delay_s=0.3)
"""Suspects soon and buries late."""


async def start(
    node: nodes.Node, role: Role, zone: str | None = None
) -> tuple[MembershipCoreDiscovery, Recorder]:
    locations, recorder = MembershipCoreDiscovery(node.agent), Recorder()
    await locations.start(DomainInfo(node.name, role, zone), (node.address,), recorder)
    return locations, recorder


def location(node: nodes.Node, zone: str | None = None) -> CoreLocation:
    return CoreLocation(node.name, (node.address,), zone)


async def test_core_publishes_role_and_zone_as_properties() -> None:
    async with nodes.running_cluster("C1 S1", properties={"kept": "yes"}) as (core, satellite):
        locations, _ = await start(core, Role.CORE, "A")
        _, recorder = await start(satellite, Role.SATELLITE, "B")
        await recorder.until(location(core, "A"))
        assert satellite.see("C1").properties == {
            "cells.role": "core",
            "cells.zone": "A",
            "kept": "yes",
        }
        assert core.see("S1").properties == {"kept": "yes"}

        await locations.stop()
        await recorder.until()
        assert satellite.see("C1").properties == {"kept": "yes"}


async def test_dead_core_is_removed_and_suspected_core_is_not() -> None:
    async with nodes.running_cluster("S1 S2 C1", config=nodes.QUICK) as (satellite, _, core):
        await start(core, Role.CORE)
        _, recorder = await start(satellite, Role.SATELLITE)
        await recorder.until(location(core))
        calls = len(recorder.calls)
        known_in: list[MemberState] = []
        satellite.agent.add_listener(
            lambda change: known_in.append(change.member.state) if recorder.calls[-1] else None
        )
        await core.crash()
        change = await satellite.until_removed("C1")

        assert change.member.state is MemberState.DEAD
        assert MemberState.SUSPECT in known_in, "told to be there while it was suspected"
        await recorder.until()
        assert len(recorder.calls) == calls + 1


async def test_core_paused_briefly_is_never_removed() -> None:
    async with nodes.running_node("S1", config=PATIENT) as satellite:
        _, recorder = await start(satellite, Role.SATELLITE)
        async with core_member("C1", satellite.address) as process:
            await eventually(lambda: recorder.calls[-1], "the core is told")
            calls = list(recorder.calls)
            process.send_signal(signal.SIGSTOP)
            await satellite.until(
                lambda node: node.see("C1").state is MemberState.SUSPECT, "it is suspected"
            )
            process.send_signal(signal.SIGCONT)
            await satellite.until(lambda node: node.see("C1").is_reachable, "it is back")

            assert satellite.reported(MembershipEventType.REMOVED) == []
            assert recorder.calls == calls


async def test_core_whose_node_left_is_removed() -> None:
    async with nodes.running_cluster("S1 C1") as (satellite, core):
        locations, _ = await start(core, Role.CORE)
        _, recorder = await start(satellite, Role.SATELLITE)
        await recorder.until(location(core))
        await core.agent.stop()
        await recorder.until()

        await locations.stop()
        assert not locations.statistics().is_registered


async def test_agent_stop_keeps_the_published_cores() -> None:
    async with nodes.running_cluster("C1 C2") as (one, two):
        await start(two, Role.CORE)
        locations, recorder = await start(one, Role.CORE)
        await recorder.until(location(two))
        assert locations.statistics().is_connected
        await one.agent.stop()
        await eventually(lambda: not locations.statistics().is_connected, "it is over")

        assert not locations.statistics().is_registered
        assert recorder.calls[-1] == by_name(location(two))
        await locations.stop()


async def test_node_that_loses_its_name_is_not_registered_as_core() -> None:
    async with nodes.running_cluster("C1 C2") as (one, two):
        await start(two, Role.CORE)
        locations, recorder = await start(one, Role.CORE)
        await recorder.until(location(two))
        one.agent._publish(NameConflictLost(Address("127.0.0.1", 1)))
        await eventually(lambda: not locations.statistics().is_connected, "it is over")

        assert not locations.statistics().is_registered
        assert "C1" in locations.statistics().last_error
        assert recorder.calls[-1] == by_name(location(two))
        await locations.stop()


async def test_missed_changes_are_caught_up_with(monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes.running_cluster("S1 C1") as (satellite, core):
        locations, recorder = await start(satellite, Role.SATELLITE)
        monkeypatch.setattr(events, "_UNREAD_MAX", 1)
        for number in range(3):
            satellite.agent.set_properties({"number": str(number)})
        await eventually(lambda: locations.statistics().failures, "changes were lost")
        assert "events were unread" in locations.statistics().last_error
        monkeypatch.undo()

        await start(core, Role.CORE)
        await recorder.until(location(core))
        assert locations.statistics().is_connected


async def test_unknown_role_is_skipped() -> None:
    async with nodes.running_cluster("S1 C1 C2") as (satellite, one, two):
        one.agent.set_properties({"cells.role": "hub"})
        await satellite.eventually(lambda node: node.see("C1").properties)
        locations, recorder = await start(satellite, Role.SATELLITE)
        assert locations.statistics().skipped == 1
        two.agent.set_properties({"cells.role": "core"})
        await recorder.until(location(two))
        two.agent.set_properties({"cells.role": ""})
        await satellite.eventually(lambda node: node.see("C2").properties["cells.role"] == "")
        one.agent.set_properties({"cells.role": "core"})
        await recorder.until(location(one), location(two))
        two.agent.set_properties({"cells.role": "satellite"})
        await recorder.until(location(one))


async def test_domain_unlike_its_member_is_refused() -> None:
    async with nodes.running_node("C1") as node:
        locations, recorder = MembershipCoreDiscovery(node.agent), Recorder()
        with pytest.raises(ConfigError, match="must have the name of its member, 'C1'"):
            await locations.start(DomainInfo("C2", Role.CORE), (node.address,), recorder)
        elsewhere = Address("127.0.0.1", 1)
        with pytest.raises(ConfigError, match="a core is dialed at the address of its member"):
            await locations.start(DomainInfo("C1", Role.CORE), (node.address, elsewhere), recorder)
        assert node.agent.local_member.properties == {}
        await locations.start(DomainInfo("C1", Role.CORE), (node.address,), recorder)
        assert recorder.calls == [{}]


async def test_properties_that_have_no_room_for_a_core_are_refused() -> None:
    config = MembershipConfig(properties_bytes_max=20)
    async with nodes.running_node("C1", config=config, properties={"a": "b" * 10}) as node:
        with pytest.raises(ConfigError, match="exceed the 20 allowed"):
            await start(node, Role.CORE)


async def test_discovery_without_a_running_agent_is_refused() -> None:
    async with nodes.running_service("C1") as service:
        node = nodes.make_node(service)
        with pytest.raises(UsageError, match=r"is not running; call start"):
            await start(node, Role.CORE)
        await node.agent.start()
        await node.agent.stop()
        with pytest.raises(UsageError, match="was stopped"):
            await start(node, Role.CORE)
        await asyncio.wait_for(MembershipCoreDiscovery(node.agent).stop(), DEADLINE_S)
