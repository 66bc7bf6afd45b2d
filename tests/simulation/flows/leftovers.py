"""Dead letters at the end of a run: all that nobody could make sense of, and nothing else."""

from __future__ import annotations

from collections import Counter

from postroad.durable import Reason
from postroad.durable.letters import decode_letter
from postroad.testing import require
from tests.simulation.flows.books import Garbage
from tests.simulation.flows.findings import rows_of
from tests.simulation.flows.world import World


def check_garbage(world: World) -> None:
    """What was posted for sure is there once, for operators to see; what may have been, at most."""
    dead = find_dead(world)
    known = world.orders.garbage
    for it, count in dead.items():
        require(it in known, f"{it} is dead, and is a letter of a flow")
        require(count == 1, f"{it} is dead {count} times")
    for it, is_posted in known.items():
        require(not is_posted or it in dead, f"{it} was posted, and nobody can see it")


def find_dead(world: World) -> Counter[Garbage]:
    """All dead letters; there is one reason for them."""
    found: Counter[Garbage] = Counter()
    for machine in world.machines.values():
        rows = rows_of(machine, "SELECT peer, reason, detail, letter FROM postroad_dead")
        for peer, reason, detail, letter in rows:
            is_told = reason == Reason.REJECTED and bool(detail)
            require(is_told, f"{machine.name} has a dead letter of {peer}: {reason}, {detail}")
            found[Garbage(peer, machine.name, decode_letter(letter).body)] += 1
    return found
