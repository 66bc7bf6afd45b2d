"""Membership events as users receive them: by `async for` and by callbacks, in order."""

from __future__ import annotations

import asyncio

import pytest

from postroad.cluster import (
    ClusterAgent,
    Member,
    MembershipEvent,
    MembershipEventType,
    MemberState,
    events,
)
from postroad.core.errors import SlowConsumerError
from tests.support.cluster import nodes


class Mirror:
    """What a listener knows if it believes every change, and nothing else."""

    def __init__(self, agent: ClusterAgent) -> None:
        self._agent = agent
        self.members: dict[str, Member] = {member.name: member for member in agent.members}
        agent.add_listener(self)

    def __call__(self, change: MembershipEvent) -> None:
        previous = self.members.get(change.member.name)
        if change.kind is MembershipEventType.ADDED:
            assert previous is None
            assert change.previous is None
        else:
            assert previous is not None
            assert change.previous is not None
            assert change.previous.instance == change.member.instance == previous.instance
            assert change.previous.properties == previous.properties
        if change.kind is MembershipEventType.REMOVED:
            assert change.member.state in (MemberState.DEAD, MemberState.LEFT)
            del self.members[change.member.name]
        else:
            assert change.member.state.is_active
            self.members[change.member.name] = change.member

    def is_true(self) -> bool:
        """Whether that is what the agent says."""
        return self.members == {member.name: member for member in self._agent.members}


async def next_change(stream: object) -> MembershipEvent:
    change = await asyncio.wait_for(anext(stream), 10)  # type: ignore[call-overload]
    assert isinstance(change, MembershipEvent)
    return change


async def test_stream_tells_everything_in_order() -> None:
    async with nodes.running_node("a") as a:
        stream = a.agent.events()
        async with nodes.running_node("b", a, properties={"zone": "north"}) as b:
            added = await next_change(stream)
            assert (added.kind, added.member.name) == (MembershipEventType.ADDED, "b")
            assert added.member.address == b.address
            assert added.member.properties == {"zone": "north"}
            assert added.previous is None
            assert str(added) == f"added b at {b.address}, alive"

            b.agent.set_properties({"zone": "south"})
            changed = await next_change(stream)
            assert (changed.kind, changed.member.name) == (MembershipEventType.METADATA, "b")
            assert changed.member.properties == {"zone": "south"}
            assert changed.previous is not None
            assert changed.previous.properties == {"zone": "north"}
            # A member is a picture of one moment, which nobody can change afterwards.
            assert added.member.properties == {"zone": "north"}
            with pytest.raises(TypeError):
                changed.member.properties["zone"] = "west"  # type: ignore[index]
        removed = await next_change(stream)
        assert (removed.kind, removed.member.state) == (
            MembershipEventType.REMOVED,
            MemberState.LEFT,
        )
        assert removed.member.properties == {"zone": "south"}
        assert a.agent.member("b") is None


async def test_stream_ends_with_the_agent_after_what_is_unread() -> None:
    async with nodes.running_service("a") as service:
        node = nodes.make_node(service)
        await node.agent.start()
        stream = node.agent.events()
        node.agent.set_properties({"unread": "yes"})
        waiting = asyncio.create_task(collect(node.agent))
        await asyncio.sleep(0)
        await node.agent.stop()
        assert [event.kind for event in await collect_from(stream)] == [
            MembershipEventType.METADATA
        ]
        assert await asyncio.wait_for(waiting, 5) == []
        # One that is opened only now has nothing to tell.
        assert await asyncio.wait_for(collect(node.agent), 5) == []


async def collect(agent: ClusterAgent) -> list[MembershipEvent]:
    return await collect_from(agent.events())


async def collect_from(stream: object) -> list[MembershipEvent]:
    return [change async for change in stream]  # type: ignore[attr-defined]


async def test_reader_may_stop_reading() -> None:
    async with nodes.running_node("a") as a:
        stream = a.agent.events()
        a.agent.set_properties({"n": "1"})
        stream.close()
        a.agent.set_properties({"n": "2"})
        assert [event.member.properties["n"] for event in await collect_from(stream)] == ["1"]


async def test_local_changes_are_published() -> None:
    async with nodes.running_node("a") as a:
        a.agent.set_properties({"n": "1"})
        a.agent.set_properties({"n": "1"})
        a.agent.set_properties({"n": None})
        a.agent.set_properties({"n": None})
        assert [dict(change.member.properties) for change in a.changes] == [{"n": "1"}, {}]
        assert {change.kind for change in a.changes} == {MembershipEventType.METADATA}


async def test_failing_listener_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[MembershipEvent] = []

    def fail(change: MembershipEvent) -> None:
        calls.append(change)
        raise RuntimeError("listener out of order")

    async with nodes.running_service("a") as service:
        node = nodes.Node(service, ClusterAgent(service))
        node.agent.remove_listener(node.changes.append)
        node.agent.add_listener(fail)
        after: list[MembershipEvent] = []
        node.agent.add_listener(after.append)
        async with node.agent, nodes.running_node("b", node) as b:
            await nodes.all_know([node, b])
            assert [call.member.name for call in calls] == ["b"]
            assert after == calls
            assert "listener out of order" in caplog.text
            node.agent.remove_listener(fail)
            node.agent.remove_listener(fail)
            b.agent.set_properties({"n": "1"})
            await node.until(lambda _: len(after) == 2, "b changed")
            assert len(calls) == 1


async def test_events_caused_by_a_listener_keep_their_order() -> None:
    async with nodes.running_service("a") as service:
        node = nodes.make_node(service)

        def greet(change: MembershipEvent) -> None:
            if change.kind is MembershipEventType.ADDED:
                node.agent.set_properties({"greeted": change.member.name})

        node.agent.add_listener(greet)
        later: list[MembershipEvent] = []
        node.agent.add_listener(later.append)
        async with node.agent:
            stream = node.agent.events()
            async with nodes.running_node("b", node):
                reported = [await next_change(stream) for _ in range(2)]
        assert [change.kind for change in reported] == [
            MembershipEventType.ADDED,
            MembershipEventType.METADATA,
        ]
        assert node.changes[:2] == reported
        assert later[:2] == reported


async def test_slow_reader_gets_an_error_for_missed_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_UNREAD_MAX", 1_000)
    async with nodes.running_node("a") as a:
        slow, quick = a.agent.events(), a.agent.events()
        for number in range(1_001):
            a.agent.set_properties({"n": str(number)})
            assert (await anext(quick)).member.properties["n"] == str(number)
        with pytest.raises(SlowConsumerError, match="more than 1000 events were unread"):
            await anext(slow)
        # It can begin anew.
        fresh = a.agent.events()
        a.agent.set_properties({"n": "last"})
        assert (await anext(fresh)).member.properties["n"] == "last"


async def test_changes_agree_with_the_members_through_thick_and_thin() -> None:
    async with nodes.running_cluster("a b c d", config=nodes.QUICK) as (a, b, c, d):
        mirrors = [Mirror(node.agent) for node in (a, b)]
        c.agent.set_properties({"n": "1"})
        await d.crash()
        async with nodes.running_node("e", c, config=nodes.QUICK) as e:
            e.agent.set_properties({"n": "2"})
            for node in (a, b):
                await node.until_removed("d")
                await node.until(
                    lambda node: "e" in node.names and node.see("e").version, "e changed"
                )
            async with nodes.running_node("d", b, bind=d.address, config=nodes.QUICK) as back:
                for node in (a, b):
                    await node.until_meets(back.agent.local_member)
        for node in (a, b):
            await node.until_knows("a", "b", "c")
            assert node.see("c").properties == {"n": "1"}
        await a.until(lambda _: all(mirror.is_true() for mirror in mirrors), "it is as was told")
