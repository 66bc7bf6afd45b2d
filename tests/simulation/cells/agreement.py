"""All tables are what the model says, within bounded time."""

from __future__ import annotations

import json

from postroad.cells import CellDomain
from postroad.testing import LivenessFailure, require
from tests.simulation.cells.model import Model, Row, rows_of
from tests.simulation.cells.process import Process
from tests.simulation.cells.world import World

AGREEMENT_S = 10.0
"""Silent peers are given up, cores are dialed again, tell what they offer, become defaults."""
_LOOK_INTERVAL_S = 0.1


def await_agreement(world: World) -> float:
    """Let time pass until all tables are right; returns how long that took."""
    began = world.sim.now
    while world.sim.now < began + AGREEMENT_S:
        if not differences(world):
            return world.sim.now - began
        world.sim.run_for(_LOOK_INTERVAL_S)
    told = "\n".join(differences(world))
    raise LivenessFailure(f"tables are still wrong after {AGREEMENT_S:g} s:\n{told}")


def differences(world: World) -> list[str]:
    model = world.model()
    return [
        difference for process in world.running() for difference in _differences_of(model, process)
    ]


def _differences_of(model: Model, process: Process) -> list[str]:
    if process.domain is None or process.is_stopping:
        return [f"{process} is not up"]
    found, wanted = rows_of(process.domain.table), model.table(process)
    return [
        *(f"{process} lacks {_describe(row)}" for row in sorted(wanted - found, key=str)),
        *(f"{process} still has {_describe(row)}" for row in sorted(found - wanted, key=str)),
    ]


def _describe(row: Row) -> str:
    zone = "" if row.zone is None else f" zone {row.zone}"
    return f"{row.type} {row.destination} -> {row.target}{zone}"


def check_cores(world: World) -> None:
    """Have a domain compare what the cores know, as an operator would."""
    if not world.model().is_whole():
        return
    process = world.sim.rng.choice(world.running())
    assert process.domain is not None
    answer = world.sim.run(process.domain.command("RoutingMgr", "check -json"), process.node)
    told = json.loads(answer)
    require(told["differences"] == [], f"{process} finds that cores differ: {answer}")
    running = sorted(it.name for it in world.running() if world.model().is_core(it))
    require(told["cores"] == running, f"{process} asked {told['cores']}, not {running}")


# Nothing is left over.


def check_leaks(world: World) -> None:
    """When nobody has sent anything for a while, nothing waits anywhere."""
    for process in world.running():
        assert process.domain is not None and process.talker is not None
        left = process.talker.unfinished
        require(not left, f"{process} has calls in flight: {', '.join(left)}")
        for text in _leftovers(process.domain):
            require(False, f"{process} has {text}")


def _leftovers(domain: CellDomain) -> list[str]:
    calls, exchange = domain._calls, domain._exchange
    found = [f"{len(calls)} calls that wait"] if len(calls) else []
    if calls._hopeful:
        found.append(f"{len(calls._hopeful)} calls that hope for routes")
    found += [f"{it!r}" for it in exchange.runners.values() if not it.is_idle]
    found += [f"{it!r}" for it in domain.links.by_domain.values() if not it.is_written]
    if exchange.depth:
        found.append(f"{exchange.depth} handlers on the stack")
    if not domain.spreader.is_settled:
        found.append(f"peers that are behind: {domain.spreader.announcer.behind()}")
    return found
