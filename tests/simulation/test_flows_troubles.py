"""Scenarios of flows with more to them than one death; ids are those of `flows/coverage.py`."""

from collections.abc import Sequence
from functools import partial
from random import Random

import msgspec
import pytest

from postroad.flows import CatchUpPolicy, FlowContext, FlowDefinition, FlowStatus, flow
from postroad.flows.machine.status import TERMINAL_STATUSES
from postroad.flows.sessions.messages import (
    QUEUE,
    SessionEnvelope,
    SessionError,
    SessionKey,
    encode_session_envelope,
)
from postroad.testing import SimCluster
from tests.simulation.durable.process import Machine
from tests.simulation.flows import bank
from tests.simulation.flows.bank import draw_number
from tests.simulation.flows.clerks import Garbage
from tests.simulation.flows.findings import heads_of
from tests.simulation.flows.operators import EXCUSES
from tests.simulation.flows.orders import Kind, Order, Receipt, Timetable
from tests.simulation.flows.scenario import finish
from tests.simulation.flows.stories import ORDER, plan_of
from tests.simulation.flows.verdict import check_schedules, find_dead
from tests.simulation.flows.world import World, garbage_of

SLOW = msgspec.structs.replace(ORDER, payee_rest_s=3.0)
"""The payee thinks about it for a while."""
PAYDAY = Timetable(
    order=msgspec.structs.replace(ORDER, name="payday", kind=Kind.SALARY),
    minutes=1,
    catch_up=CatchUpPolicy.ALL,
)
MINUTE_S = 60.0
AFTER = "durable.commit.after"


def status_of(machine: Machine) -> FlowStatus:
    """That of the only flow."""
    (state,) = heads_of(machine)
    return state.status


# Letters.


def test_garbage() -> None:
    """R11: whatever it is, and whenever somebody dies of it, operators can see it; flows go on."""
    with SimCluster(1) as sim:
        world = World(sim, plan_of(ORDER))
        payee = world.machines["n1"]
        posted = [Garbage("n2", "n1", body) for body in garbage_of(7)]
        world.desks["n2"].garbage += posted
        with world.traps.armed():
            trap = world.traps.kill(payee, AFTER, visits=4)
            world.start_all()
            sim.run_for(3.0)
            assert trap.has_fired
            finish(world)
        assert find_dead(world) == dict.fromkeys(posted, 1)
    assert world.orders.endings["order"].startswith("paid")


def test_letter_by_somebody_who_has_no_part_in_the_session() -> None:
    """R11."""
    with SimCluster(2) as sim:
        world = World(sim, plan_of(SLOW))
        world.start_all()
        sim.run_for(1.0)
        (state,) = heads_of(world.machines["n0"])
        envelope = SessionEnvelope(SessionKey(state.id, 1), True, [SessionError("forged")])
        mail = world.machines["n2"].mail
        assert mail is not None
        sim.run(mail.send(QUEUE, encode_session_envelope(envelope), to="n0"), timeout=1.0)
        finish(world)
        assert not find_dead(world)
    assert world.orders.endings["order"].startswith("paid")


def test_peer_that_nobody_knows() -> None:
    """R11: what is for it waits where operators can see it, and nobody else does."""
    lost = msgspec.structs.replace(ORDER, name="lost", payee="nobody")
    with SimCluster(3) as sim:
        world = World(sim, plan_of(ORDER, lost))
        world.start_all()
        sim.run_for(5.0)
        assert world.orders.endings["order"].startswith("paid")
        machine = world.machines["n0"]
        assert machine.mail is not None
        peers = sim.run(machine.mail.statistics(), timeout=1.0).peers
        assert [name for name, peer in peers.items() if peer.depth] == ["nobody"]
        statuses = [state.status for state in heads_of(machine)]
        assert sorted(statuses) == [FlowStatus.COMPLETED, FlowStatus.RUNNING]


# Code.


def changed(change: str) -> FlowDefinition[[Order], str]:
    """The code of payments, as somebody may have changed it."""

    @flow(name="pay")
    async def pay(ctx: FlowContext, order: Order) -> str:
        if change == "extra":
            await ctx.step(draw_number)
        session = ctx.open_session(order.payee)
        if change == "reordered":
            await session.send(order)
        if change != "fewer":
            more = 1 if change == "arguments" else 0
            await bank._move(ctx, order, "debit", -order.amount - more)
        if change == "shorter":
            return "nothing"
        await session.send(order)
        return str(await session.receive(Receipt))

    return pay


@pytest.mark.parametrize("change", ["fewer", "extra", "reordered", "arguments", "shorter"])
def test_changed_code(change: str) -> None:
    """F13, P7: parked with what differs, also after a death, and unharmed."""
    with SimCluster(4) as sim:
        world = World(sim, plan_of(SLOW))
        payer = world.machines["n0"]
        world.desks["n0"].excuses = (*EXCUSES, "the code of this flow does not match its history")
        with world.traps.armed():
            world.start_all()
            sim.run_for(1.0)
            payer.kill()
            others = [definition for definition in bank.ALL if definition.name != "pay"]
            world.code["n0"] = (changed(change), *others)
            for _ in range(2):
                # What follows from the letters of the payee is not done either.
                trap = world.traps.kill(payer, AFTER, visits=2)
                world.start_all()
                sim.run_for(2.0)
                world.traps.clear()
                assert trap.has_fired
            world.start_all()
            sim.run_for(2.0)
            assert status_of(payer) is FlowStatus.PARKED
            (state,) = heads_of(payer)
            assert state.failure is not None
            assert "the code of this flow does not match its history" in state.failure.detail
            del world.code["n0"]
            payer.kill()
            payer.start()
            sim.run_for(2.0)
            finish(world)
    assert world.orders.endings["order"].startswith("paid")


def scribble(flaky: float) -> object:
    """In place of the step of that name."""
    return draw_number


def test_result_that_cannot_be_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: said at once, and tried again as often as an operator likes; nothing is done twice."""
    monkeypatch.setattr(bank, "scribble", scribble)
    with SimCluster(5) as sim:
        world = World(sim, plan_of(msgspec.structs.replace(ORDER, is_odd=True)))
        payer = world.machines["n0"]
        with world.traps.armed():
            trap = world.traps.kill(payer, "flows.step.completed", visits=9)
            for _ in range(3):
                world.start_all()
                sim.run_for(2.0)
            assert trap.has_fired
            assert status_of(payer) is FlowStatus.PARKED
            (state,) = heads_of(payer)
            assert state.failure is not None
            text = "what step 'scribble' returned cannot be serialized"
            assert state.failure.error.text.startswith(text)
            monkeypatch.undo()
            finish(world)
    assert world.orders.endings["order"].startswith("paid")


# Processes and disks.


def test_two_processes_with_one_store() -> None:
    """P5: the second waits, even while the first stands still, and takes over when it is dead."""
    with SimCluster(6) as sim:
        world = World(sim, plan_of(SLOW))
        first = world.machines["n0"]
        twin = add_twin(world, first)
        world.start_all()
        sim.run_for(1.0)
        twin.node.start()
        first.node.pause(5.0)
        sim.run_for(7.0)
        assert twin.mail is None
        assert world.orders.endings["order"].startswith("paid")
        assert status_of(first) in TERMINAL_STATUSES
        finish(world)


def test_process_that_takes_over() -> None:
    """P5: a flow goes on in one of them, whoever it is."""
    with SimCluster(7) as sim:
        world = World(sim, plan_of(SLOW))
        first = world.machines["n0"]
        twin = add_twin(world, first)
        world.start_all()
        sim.run_for(1.0)
        twin.node.start()
        sim.run_for(1.0)
        first.kill()
        first.mail = None
        first.node.start()
        introduce(world, twin)
        sim.run_for(10.0)
        processes = (first, twin)
        (winner,) = [process for process in processes if process.mail is not None]
        world.machines["n0"] = winner
        introduce(world, winner)
        for process in processes:
            if process is not winner:
                process.node.kill()
        finish(world)
    assert world.orders.endings["order"].startswith("paid")


def add_twin(world: World, first: Machine) -> Machine:
    """Another machine with the store and the name of one."""
    serve = partial(world._serve, first.name, Random(0))
    twin = Machine(
        world.sim, first.name, world.plan.config, (QUEUE,), serve, host="twin", disk=first.disk
    )
    assert first.directory is not None
    twin.directory = first.directory
    return twin


def introduce(world: World, machine: Machine) -> None:
    """Tell everybody where a node is now."""
    for other in world.machines.values():
        assert other.directory is not None
        other.directory.set(machine.name, machine.address)


@pytest.mark.parametrize("victim", ["n0", "n1"])
def test_disk_that_takes_nothing(victim: str) -> None:
    """F15, P6: flows wait for it, also those of a process that starts meanwhile."""
    orders = [msgspec.structs.replace(SLOW, name=f"order-{number}") for number in range(4)]
    with SimCluster(8) as sim:
        world = World(sim, plan_of(*orders))
        machine = world.machines[victim]
        world.start_all()
        sim.run_for(1.0)
        machine.disk.is_full = True
        sim.run_for(3.0)
        machine.kill()
        machine.start()
        sim.run_for(3.0)
        assert not world.orders.is_done
        world.heal()
        finish(world)
    assert all(ending.startswith("paid") for ending in world.orders.endings.values())


# Clocks.


def ids_of(machine: Machine, names: Sequence[str]) -> list[int]:
    ids = {state.client_id: state.id for state in heads_of(machine)}
    return [ids[name] for name in names]


@pytest.mark.parametrize("restarts", [False, True])
def test_clock_that_is_set_back(restarts: bool) -> None:
    """P10: sleeps end when the clock says so, one flow is begun for each time, no id is reused."""
    sleeper = msgspec.structs.replace(ORDER, name="sleeper", rest_s=10.0)
    late = msgspec.structs.replace(ORDER, name="late")
    plan = plan_of(sleeper, late, schedules=(PAYDAY,), minute_s=5.0)
    jobs = [
        msgspec.structs.replace(job, time=5.0 * (job.name == "late")) for job in plan.jobs["n0"]
    ]
    plan.jobs["n0"][:] = jobs
    with SimCluster(9) as sim:
        world = World(sim, plan)
        payer = world.machines["n0"]
        world.start_all()
        sim.run_for(6.0)
        assert world.orders.endings.keys() == {"late"}
        payer.node.jump_clock(-30.0)
        if restarts:
            payer.kill()
            payer.start()
        sim.run_for(20.0)
        assert "sleeper" not in world.orders.endings
        sim.run_for(15.0)
        assert world.orders.endings["sleeper"].startswith("paid")
        # The minute that had come already came again meanwhile.
        assert check_schedules(world) == 1
        sim.run_for(MINUTE_S)
        assert check_schedules(world) == 2
        finish(world)
        sleeping, later = ids_of(payer, ["sleeper", "late"])
        assert sleeping < later
        assert len({state.id for state in heads_of(payer)}) == len(heads_of(payer))


def test_clock_that_is_set_forward() -> None:
    """P10, F16: all times in between are made up for."""
    plan = plan_of(schedules=(PAYDAY,), minute_s=5.0)
    with SimCluster(10) as sim:
        world = World(sim, plan)
        world.start_all()
        sim.run_for(1.0)
        world.machines["n0"].node.jump_clock(3 * MINUTE_S)
        sim.run_for(40.0)
        assert check_schedules(world) == 4
        finish(world)
