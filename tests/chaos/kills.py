"""Nodes that send messages to each other are killed, at a fault point or at any time."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence, Set
from typing import Any, Generic, NamedTuple, TypeVar

import pytest

from tests.support.deadlines import eventually
from tests.support.durable.mail_node import BATCH, LIMITS
from tests.support.durable.mail_processes import (
    SQLITE,
    STORES,
    MailNode,
    NodeT,
    all_quiet,
    introduce,
)
from tests.support.tiers import by_tier

T = TypeVar("T")

COUNT = 40
"""Messages around each kill: half of them wait when the receiver can be reached at last."""
KILLS_MIN = 4
"""Of a storm, however short it is."""
BOTH_AT_NIGHT = by_tier(test=(SQLITE,), nightly=STORES)


class Kill(NamedTuple):
    """Where a process dies.

    Attributes:
        victim: who dies.
        point: the fault point.
        kind: of a commit, the unit that must be in it; "-" for any.
        nth: at which time that the point is reached.
        ids: of the scenarios.
    """

    victim: str
    point: str
    kind: str = "-"
    nth: int = 1
    ids: str = ""

    def __str__(self) -> str:
        return f"{self.victim} at {self.point} {self.kind} {self.nth} {self.ids}"


def cover(cases: Sequence[T], features: Callable[[T], Set[object]]) -> list[T]:
    """Few cases that have, together, every feature that any of them has; all cases at night."""
    missing = set[object]().union(*map(features, cases))
    chosen: list[T] = []
    while missing:
        chosen.append(max(cases, key=lambda case: len(features(case) & missing)))
        missing -= features(chosen[-1])
    return by_tier(test=chosen, nightly=list(cases))


def kill_cases(kills: dict[str, list[Kill]], stores: Sequence[str] = BOTH_AT_NIGHT) -> list[Any]:
    """Parameters `store` and `kills` of a test: each fault point once for each store, all at night.

    On SQLite it is the first visit or victim of a point, on PostgreSQL the last one.
    """
    cases = []
    for store in stores:
        every = [kill for group in kills.values() for kill in group]
        order = every if store == SQLITE else every[::-1]
        chosen = cover(order, lambda kill: {(kill.point, kill.kind)})
        for name, group in kills.items():
            if part := [kill for kill in group if kill in chosen]:
                cases.append(pytest.param(store, part, id=f"{store}-{name.replace(' ', '-')}"))
    return cases


async def live_through(
    kill: Kill,
    nodes: Sequence[MailNode],
    send: Callable[[int, int], Awaitable[bool]],
    first: int,
    apart: tuple[MailNode, MailNode] | None = None,
) -> int:
    """Send until a fault point has killed its victim, and see that all is handled afterwards.

    Args:
        send: has a node send messages, from a number on, so many; whether it lived to see
            them kept.
        first: the number of the first message.
        apart: sender and receiver, which find each other when half of the messages are sent.

    Returns:
        the number after the last message.
    """
    victim = next(node for node in nodes if node.name == kill.victim)
    if apart:
        apart[0].lose(apart[1])
    victim.tell("arm", kill.point, kill.kind, kill.nth)
    is_sent = await send(first, COUNT // 2)
    if is_sent and apart:
        apart[0].meet(apart[1])
    is_sent = is_sent and await send(first + COUNT // 2, COUNT // 2)
    end = first + COUNT
    while is_sent and await _survives(victim, nodes, kill):
        # So much went together that it did not come to the point often enough.
        is_sent = await send(end, BATCH)
        end += BATCH
    await victim.dies()
    await start_again(victim, nodes)
    if not is_sent:
        assert await send(first, end - first), kill
    await all_quiet(*nodes, after=str(kill))
    return end


async def _survives(victim: MailNode, nodes: Sequence[MailNode], kill: Kill) -> bool:
    """Whether it is alive when nothing is left to be done."""
    await eventually(
        lambda: victim.is_dead or not any(node.waiting for node in nodes), f"{kill}: dead or quiet"
    )
    return not victim.is_dead


async def start_again(victim: MailNode, nodes: Sequence[MailNode]) -> None:
    await victim.start()
    introduce(victim, to=nodes)


def seeded(seed: int) -> random.Random:
    """Chance with a seed that is in the report of a test that fails."""
    sys.stdout.write(f"the seed of this storm is {seed}\n")
    return random.Random(seed)


def store_of(seed: int) -> str:
    """What a storm has for stores."""
    return STORES[seed % len(STORES)]


class Storm(Generic[NodeT]):
    """Hurts nodes at random, and heals them again.

    Args:
        set_going: called when a node was started, to have it do something all the time.
        weights: how often to kill, to stop and to pause.
    """

    def __init__(
        self,
        nodes: list[NodeT],
        seed: int,
        set_going: Callable[[NodeT], Awaitable[None]],
        weights: tuple[int, int, int],
    ) -> None:
        self._nodes = nodes
        self._chance = seeded(seed)
        self._set_going = set_going
        self._weights = weights
        self.kills = self.stops = self.pauses = 0

    async def rage(self, seconds: float) -> None:
        """Go on for so long, and until enough was done."""
        for node in self._nodes:
            await self._set_going(node)
        deadline = asyncio.get_running_loop().time() + seconds
        while self.kills < KILLS_MIN or asyncio.get_running_loop().time() < deadline:
            # When it strikes is part of what is random.
            await asyncio.sleep(self._chance.uniform(0.0, 0.5))
            victims = self._chance.sample(self._nodes, self._chance.choice((1, 1, 2)))
            strikes = (self._kill, self._stop, self._pause)
            strike = self._chance.choices(strikes, self._weights)[0]
            await asyncio.gather(*map(strike, victims))

    async def _kill(self, victim: NodeT) -> None:
        await victim.kill()
        await victim.start()
        await self._set_going(victim)
        self.kills += 1

    async def _stop(self, victim: NodeT) -> None:
        await victim.stop()
        await victim.start()
        await self._set_going(victim)
        self.stops += 1

    async def _pause(self, victim: NodeT) -> None:
        victim.signal(signal.SIGSTOP)
        await asyncio.sleep(LIMITS.heartbeat_timeout_s * self._chance.uniform(1.1, 1.6))
        victim.signal(signal.SIGCONT)
        self.pauses += 1


async def storm_of_kills(
    nodes: Sequence[MailNode],
    seed: int,
    seconds: float,
    send: Callable[[int, int], Awaitable[bool]],
    sender: MailNode,
    between: Callable[[random.Random], Awaitable[None]] | None = None,
) -> int:
    """Kill anybody at any time while messages are sent; how many were, when all are handled.

    Args:
        send: as for `live_through`.
        between: called after each round of kills.
    """
    chance = seeded(seed)
    deadline = asyncio.get_running_loop().time() + seconds
    kills = sent = 0
    while kills < KILLS_MIN or asyncio.get_running_loop().time() < deadline:
        sending = asyncio.ensure_future(send(sent, COUNT))
        # When it strikes is part of what is random.
        await asyncio.sleep(chance.uniform(0.0, 0.3))
        victims = chance.sample(nodes, chance.choice((1, 1, 2)))
        await asyncio.gather(*(victim.kill() for victim in victims))
        kills += len(victims)
        for victim in victims:
            await start_again(victim, nodes)
        is_sent = await sending
        assert is_sent or sender in victims
        if not is_sent:
            assert await send(sent, COUNT)
        sent += COUNT
        if between is not None:
            await between(chance)
    await all_quiet(*nodes)
    return sent
