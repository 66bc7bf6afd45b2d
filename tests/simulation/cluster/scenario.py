"""Puts a run together: nodes, faults, healing, agreement."""

from __future__ import annotations

import msgspec

from postroad.cluster import Member
from postroad.testing import LivenessFailure, SimCluster, Simulation, require
from tests.simulation.cluster.plan import draw_plan
from tests.simulation.cluster.process import Process
from tests.simulation.cluster.world import World
from tests.simulation.plans import shortened

# What the protocol needs: the dead of the last moment are found out, halves find each other.
AGREEMENT_S = 60.0
# From then on nothing happens any more.
STABLE_S = 15.0
_LOOK_INTERVAL_S = 0.25


def await_agreement(world: World) -> float:
    """Let time pass until all agree and nothing changes any more; returns when that began."""
    healed = world.sim.now
    agreed: float | None = None
    changes = -1
    while world.sim.now < healed + AGREEMENT_S or agreed is not None:
        if not _do_agree(world):
            agreed = None
        elif agreed is None or world.views.changes != changes:
            agreed, changes = world.sim.now, world.views.changes
        elif world.sim.now >= agreed + STABLE_S:
            _check_rest(world)
            return agreed - healed
        world.sim.run_for(_LOOK_INTERVAL_S)
    raise LivenessFailure(_describe(world))


def _check_rest(world: World) -> None:
    """There is nothing left to tell; who is alone has nobody to tell it to."""
    running = world.running()
    for process in running:
        assert process.machine is not None
        gossip_queue = len(process.machine._context.gossip_queue)
        require(
            gossip_queue == 0 or len(running) == 1, f"{process} still has {gossip_queue} rumours"
        )


def _do_agree(world: World) -> bool:
    running = world.running()
    if not all(process.is_member for process in running) or len(
        {process.name for process in running}
    ) < len(running):
        return False
    truth = [
        _facts(process.own)
        for process in sorted(running, key=lambda process: process.name)
        if process.own is not None
    ]
    return all(_view(process) == truth for process in running)


def _view(process: Process) -> list[tuple[object, ...]]:
    assert process.agent is not None
    return [
        _facts(member) for member in sorted(process.agent.members, key=lambda member: member.name)
    ]


def _facts(member: Member) -> tuple[object, ...]:
    return (
        member.name,
        member.instance,
        member.address,
        member.is_reachable,
        dict(member.properties),
    )


def _describe(world: World) -> str:
    lines = [f"no agreement within {AGREEMENT_S:g} s of healing"]
    for process in world.running():
        phase = "no agent" if process.machine is None else process.machine.phase.value
        lines.append(f"{process}, {phase}: {_compare(world, process)}")
    return "\n".join(lines)


def _compare(world: World, process: Process) -> str:
    if not process.is_member or process.agent is None:
        return "sees nobody"
    seen = {member.name: member for member in process.agent.members}
    reported = []
    for other in world.running():
        member = seen.pop(other.name, None)
        if other.own is None or member is None:
            reported.append(f"misses {other}")
        elif _facts(member) != _facts(other.own):
            reported.append(f"{_differences(member, other.own)} of {other}")
    reported += [f"lists {name}, which is dead" for name in seen]
    return "; ".join(reported) or "sees all"


def _differences(seen: Member, own: Member) -> str:
    different = [
        field
        for field in ("instance", "address", "state", "version", "properties")
        if getattr(seen, field) != getattr(own, field)
    ]
    return f"sees another {', '.join(different)} ({seen.state.name.lower()})"


def run_cluster(simulation: Simulation) -> None:
    """Faults, then healing, then everybody must know everybody."""
    plan = shortened(simulation, draw_plan(simulation.rng), "healed_s", "faults")
    # Without the seeds nobody could find anybody.
    seeds = [node for node in plan.nodes if node.name in plan.seeds]
    others = [node for node in plan.nodes if node.name not in plan.seeds]
    nodes = [*seeds, *simulation.optional("nodes", others)]
    plan = msgspec.structs.replace(plan, nodes=sorted(nodes, key=lambda node: node.name))
    with SimCluster(simulation) as sim:
        sim.log.add("plan", "seed", f"{sim.seed}: {plan.name}")
        world = World(sim, plan)
        world.run(until=plan.healed_s)
        world.act(world.heal)
        took_s = await_agreement(world)
        sim.log.add("test", "agreed", f"after {took_s:.2f} s")
