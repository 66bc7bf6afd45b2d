"""The end of a run: everything ended as it should, once, and nothing is left anywhere."""

from __future__ import annotations

from postroad.flows.life import ENDED, Status
from postroad.flows.operations import view
from postroad.testing import LivenessFailure, require
from tests.simulation.durable.process import Machine
from tests.simulation.flows.books import Fate
from tests.simulation.flows.findings import Case, Findings, ending_of, heads_of, rows_of
from tests.simulation.flows.leftovers import check_garbage
from tests.simulation.flows.model import courses_of, possible_moves
from tests.simulation.flows.operators import check_parked
from tests.simulation.flows.orders import Job, Kind
from tests.simulation.flows.replays import check_ended, check_unfinished
from tests.simulation.flows.timetables import check_schedules
from tests.simulation.flows.world import World

# Clocks that jumped make some flows sleep for minutes.
QUIET_S = 400.0
# From then on nothing moves any more.
STABLE_S = 5.0
_LOOK_INTERVAL_S = 0.5
# Tables that are empty when nothing is under way.
_PASSING = (
    "postroad_outbox",
    "postroad_inbox",
    "postroad_aside",
    "postroad_flow_mail",
)
# What is to come within this time is waited for, so that nothing comes while all is quiet.
_SOON_MS = 2 * round(STABLE_S * 1000)


def await_quiet(world: World) -> float:
    """Let time pass until all flows have ended; returns how long that took."""
    healed = world.sim.now
    while not _is_quiet(world):
        if world.sim.now > healed + QUIET_S:
            raise LivenessFailure(_describe(world))
        world.start_all()
        world.sim.run_for(_LOOK_INTERVAL_S)
    return world.sim.now - healed


def check_stays_quiet(world: World) -> None:
    """What has ended stays as it is, also when every process is started again."""
    before = [_contents(it) for it in world.machines.values()]
    for machine in world.machines.values():
        machine.kill()
        machine.start()
    world.sim.run_for(STABLE_S)
    require(_is_quiet(world, soon_ms=0), "flows are at work again, and nobody began any")
    after = [_contents(it) for it in world.machines.values()]
    require(before == after, f"it was {before}, and is {after}")


def _contents(machine: Machine) -> list[list[tuple[object, ...]]]:
    return [
        rows_of(machine, "SELECT * FROM moves ORDER BY number"),
        rows_of(machine, "SELECT id, status, hex(head) FROM postroad_flows ORDER BY id"),
        rows_of(machine, "SELECT flow, number, hex(record) FROM postroad_flow_steps ORDER BY 1, 2"),
        rows_of(machine, "SELECT name, next_ms, last_ms FROM postroad_flow_schedules ORDER BY 1"),
        rows_of(machine, "SELECT hex(letter) FROM postroad_dead ORDER BY id"),
    ]


def _is_quiet(world: World, soon_ms: int = _SOON_MS) -> bool:
    machines = world.machines.values()
    return world.orders.is_done and not any(_left(world, it, soon_ms) for it in machines)


def _left(world: World, machine: Machine, soon_ms: int = _SOON_MS) -> list[str]:
    """What is not finished at a machine, with what is to come within some time."""
    if not machine.is_ready or machine.disk.connection.in_transaction:
        return ["it is not ready"]
    rows = [
        f"{count} rows in {table}"
        for table in _PASSING
        if (count := rows_of(machine, f"SELECT COUNT(*) FROM {table}")[0][0])
    ]
    until_ms = world.clock_ms(machine.name) + soon_ms
    schedules = rows_of(machine, "SELECT name, next_ms FROM postroad_flow_schedules")
    return [
        *rows,
        *(str(view(it)) for it in heads_of(machine) if it.status not in ENDED),
        *(f"{name} is due" for name, next_ms in schedules if next_ms <= until_ms),
    ]


def _describe(world: World) -> str:
    lines = [f"flows are stuck, {QUIET_S:g} s after healing"]
    for machine in world.machines.values():
        lines += [f"{machine.name}: {it}" for it in _left(world, machine) or ["nothing"]]
    books = world.orders
    waiting = [it.name for it in books.jobs.values() if not books.is_over(it)]
    lines.append(f"orders not done: {', '.join(waiting) or 'none'}")
    return "\n".join(lines)


def check_in_between(world: World) -> int:
    """What holds at any time; returns how many flows were run again."""
    count = 0
    for machine in world.machines.values():
        if not _has_tables(machine):
            continue
        count += check_unfinished(machine)
        for head in heads_of(machine):
            if head.status is Status.PARKED:
                check_parked(view(head))
    return count


def _has_tables(machine: Machine) -> bool:
    found = rows_of(machine, "SELECT 1 FROM sqlite_master WHERE name = 'postroad_flows'")
    return bool(found) and not machine.disk.connection.in_transaction


def check_all(world: World) -> None:
    findings = Findings(world)
    for job in world.orders.jobs.values():
        _check_job(world, job, findings.cases.get(job.name))
    for case in findings.cases.values():
        if case.order.kind is Kind.SALARY:
            check_case(case)
    check_schedules(world)
    check_garbage(world)
    for machine in world.machines.values():
        check_ended(machine)


def _check_job(world: World, job: Job, case: Case | None) -> None:
    fate = world.orders.fates[job.name]
    if case is None:
        require(fate is not Fate.BEGUN, f"{job.name} was begun, and there is no flow of it")
        return
    require(fate is not Fate.REFUSED, f"{job.name} was refused, and there is a flow of it: {case}")
    # What the flow has may be of a later run of it.
    case.order = job.order
    told = world.orders.endings.get(job.name)
    require(told in (None, ending_of(case.head)), f"{job.name} was said to be {told}: {case}")
    check_case(case)


def check_case(case: Case) -> None:
    if case.is_disturbed:
        _check_disturbed(case)
    else:
        _check_course(case)


def _check_course(case: Case) -> None:
    courses = {it.ending: it for it in courses_of(case.order)}
    course = courses.get(case.ending)
    require(course is not None, f"it must end as one of {list(courses)}: {case}")
    assert course is not None
    require(case.moves == course.moves, f"{dict(course.moves)} must be moved: {case}")
    require(case.responses == course.responses, f"{dict(course.responses)} must respond: {case}")
    errors = {it.trouble.error_id for _, it in case.heads if it.trouble is not None}
    is_one = case.order.left or case.order.kind == "split" or len(errors) <= 1
    require(bool(is_one), f"one failure has several names, {errors}: {case}")


def _check_disturbed(case: Case) -> None:
    """Somebody killed a part of it: no more can be said than that nothing was done twice."""
    allowed = possible_moves(case.order)
    for move, count in case.moves.items():
        require(move in allowed, f"nobody can move {move}: {case}")
        require(count == 1, f"{move} was done {count} times: {case}")
    if case.ending.startswith(("paid", "bought from")) and not case.ending.endswith("nobody"):
        balance = sum(it.amount for it in case.moves if it.what not in ("fee", "note"))
        require(balance == 0, f"money was lost or made: {case}")
