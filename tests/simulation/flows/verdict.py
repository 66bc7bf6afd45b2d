"""The end of a run: everything ended as it should, once, and nothing is left anywhere."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import msgspec

from postroad.core.errors import UsageError
from postroad.durable import DeadLetterReason
from postroad.durable.stored_messages import decode_stored_message
from postroad.flows import CatchUpPolicy, FlowContext, FlowService, FlowSession
from postroad.flows.admin import flow_view
from postroad.flows.definition import FlowRegistry
from postroad.flows.engine import tables
from postroad.flows.machine.coroutine import FlowCoroutine
from postroad.flows.machine.events import FlowLoaded
from postroad.flows.machine.state import FlowState, format_flow_id
from postroad.flows.machine.state_machine import FlowStateMachine as FlowMachine
from postroad.flows.machine.status import TERMINAL_STATUSES, FlowStatus
from postroad.flows.sessions.messages import SessionConfirm
from postroad.testing import LivenessFailure, require
from tests.simulation.durable.process import Machine
from tests.simulation.flows.bank import ALL
from tests.simulation.flows.clerks import Fate, Garbage
from tests.simulation.flows.findings import (
    Case,
    Findings,
    database_of,
    ending_of,
    heads_of,
    rows_of,
)
from tests.simulation.flows.model import courses_of, possible_moves
from tests.simulation.flows.operators import check_parked
from tests.simulation.flows.orders import Job, Kind, Timetable
from tests.simulation.flows.world import World

_REGISTRY = FlowRegistry(ALL)
NEVER_RAN = "it was cancelled before it started"
_UNFINISHED = (FlowStatus.RUNNING, FlowStatus.RETRYING, FlowStatus.PAUSED)


def _make_code(machine: FlowMachine) -> FlowCoroutine:
    state = machine.state
    if state.initiated_by is not None:
        definition = _REGISTRY.find_responder(state.initiated_by.flow)
        assert definition is not None
        flow = FlowContext(machine, definition)
        coroutine = definition.function(flow, FlowSession(flow, machine.sessions.by_number[0]))
    else:
        definition = _REGISTRY.find(state.name)
        assert definition is not None
        flow = FlowContext(machine, definition)
        args, kwargs = definition.decode_arguments(state.arguments)
        coroutine = definition.function(flow, *args, **kwargs)
    return FlowCoroutine(coroutine, definition, machine.execute, machine.cancel_command)


def _run_again(machine: Machine, state: FlowState, now_ms: int) -> tuple[FlowState, int]:
    """What becomes of a flow that is made of its record, and how many steps that adds."""
    database = database_of(machine)
    buffered, signals = tables.read_buffered(database, state.id)
    copy = msgspec.structs.replace(state, status=FlowStatus.RUNNING, result=None, failure=None)
    again = FlowMachine(
        copy,
        _make_code,
        entries=tables.read_steps(database, state.id),
        buffered=buffered,
        signals=signals,
    )
    transition = again.handle(FlowLoaded(), now_ms)
    again.stop_code()
    return again.state, len(transition.entries)


def check_unfinished(machine: Machine) -> int:
    """Those that go on must fit their records; how many there are."""
    if machine.disk.is_in_transaction:
        return 0
    unfinished = [state for state in heads_of(machine) if state.status in _UNFINISHED]
    for state in unfinished:
        again, _ = _run_again(machine, state, state.started_ms)
        detail = again.failure.detail if again.failure is not None else ""
        require(
            again.status is not FlowStatus.PARKED,
            f"{state.name} {format_flow_id(state.id)} of {machine.name} cannot go on: {detail}",
        )
    return len(unfinished)


def check_ended(machine: Machine) -> None:
    for state in heads_of(machine):
        if state.status not in (FlowStatus.COMPLETED, FlowStatus.FAILED):
            continue
        if state.failure is not None and state.failure.detail == NEVER_RAN:
            continue
        again, added = _run_again(machine, state, state.ended_ms or 0)
        who = f"{state.name} {format_flow_id(state.id)} of {machine.name}"
        require(again.status is state.status, f"{who} was {state.status}, now {again}")
        require(again.result == state.result, f"{who} gave {state.result!r}, now {again.result!r}")
        require(added == 0, f"{who} has {added} steps more when it is run again")
        was, now = state.failure, again.failure
        require((was and was.error) == (now and now.error), f"{who} failed with {was}, now {now}")


def check_memory(world: World) -> None:
    for name, flows in world.flows.items():
        machine = world.machines[name]
        if machine.is_ready and not machine.disk.is_in_transaction:
            _check_machine(machine, flows)


def _check_machine(machine: Machine, flows: FlowService) -> None:
    try:
        engine = flows.engine
    except UsageError:
        # Its program met a store that takes nothing, and ends.
        return
    for loaded in engine.loaded_flows.values():
        if loaded.is_healthy and not loaded.pending and loaded.machine is not None:
            _check_flow(machine, loaded.machine)


def _check_flow(machine: Machine, flow: FlowMachine) -> None:
    database, id = database_of(machine), flow.state.id
    who = f"{flow.state.name} {format_flow_id(id)} of {machine.name}"
    stored = tables.read_state(database, id)
    require(stored == flow.state, f"{who} is {flow.state}, and in the store {stored}")
    steps = len(tables.read_steps(database, id))
    require(steps == flow.steps, f"{who} has {flow.steps} steps, and in the store {steps}")
    buffered, signals = tables.read_buffered(database, id)
    in_store = {
        message.id for _, message in buffered if not isinstance(message.message, SessionConfirm)
    }
    in_store |= {signal.id for signal in signals}
    unread = _unread_of(flow)
    require(in_store == unread, f"{who} has not read {unread}, and in the store {in_store}")


def _unread_of(flow: FlowMachine) -> set[int]:
    """The numbers of what was said to a flow and its code has not asked for."""
    sessions = flow.sessions
    messages = {
        buffered.id for endpoint in sessions.by_number.values() for buffered in endpoint.buffer
    }
    return messages | {signal.id for waiting in sessions._signals.values() for signal in waiting}


def check_garbage(world: World) -> None:
    """What was posted for sure is there once, for operators to see; what may have been, at most."""
    dead = find_dead(world)
    expected = world.orders.garbage
    for garbage, count in dead.items():
        require(garbage in expected, f"{garbage} is dead, and is a letter of a flow")
        require(count == 1, f"{garbage} is dead {count} times")
    for garbage, is_posted in expected.items():
        require(not is_posted or garbage in dead, f"{garbage} was posted, and nobody can see it")


def find_dead(world: World) -> Counter[Garbage]:
    """All dead letters; there is one reason for them."""
    counts: Counter[Garbage] = Counter()
    for machine in world.machines.values():
        rows = rows_of(machine, "SELECT peer, reason, detail, letter FROM postroad_dead")
        for peer, reason, detail, letter in rows:
            is_told = reason == DeadLetterReason.REJECTED and bool(detail)
            require(is_told, f"{machine.name} has a dead letter of {peer}: {reason}, {detail}")
            counts[Garbage(peer, machine.name, decode_stored_message(letter).body)] += 1
    return counts


_MINUTE_MS = 60_000


def check_schedules(world: World) -> int:
    """All of them; how many flows they have begun."""
    return sum(
        _check_schedule(world, world.machines[name], timetable)
        for name, timetables in world.flow_plan.schedules.items()
        for timetable in timetables
    )


def _check_schedule(world: World, machine: Machine, timetable: Timetable) -> int:
    name, step_ms = timetable.name, timetable.minutes * _MINUTE_MS
    ((next_ms, last_ms),) = rows_of(
        machine, f"SELECT next_ms, last_ms FROM postroad_flow_schedules WHERE name = '{name}'"
    )
    times = _times_of(machine, name)
    require(len(set(times)) == len(times), f"{name} was begun twice for one time: {times}")
    require(
        all(time % step_ms == 0 and time < next_ms for time in times),
        f"{name} was begun at {times}, and is due every {step_ms} ms and next at {next_ms}",
    )
    require(last_ms == max(times, default=None), f"{name} was begun at {times}, not at {last_ms}")
    if timetable.catch_up is CatchUpPolicy.ALL:
        first_ms = min([*times, world.orders.first_ms[name]])
        expected = list(range(first_ms, next_ms, step_ms))
        require(times == expected, f"{name} was begun at {times}, and was due at {expected}")
    elif timetable.catch_up is CatchUpPolicy.LAST and times:
        require(times[-1] == next_ms - step_ms, f"{name} was begun at {times}, next is {next_ms}")
    return len(times)


def _times_of(machine: Machine, name: str) -> list[int]:
    rows = rows_of(
        machine,
        f"SELECT client_id FROM postroad_flows WHERE client_id LIKE 'schedule:{name}:%'",
    )
    texts = [client_id.removeprefix(f"schedule:{name}:") for (client_id,) in rows]
    return sorted(round(datetime.fromisoformat(text).timestamp() * 1000) for text in texts)


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
    before = [_contents(machine) for machine in world.machines.values()]
    for machine in world.machines.values():
        machine.kill()
        machine.start()
    world.sim.run_for(STABLE_S)
    require(_is_quiet(world, soon_ms=0), "flows are at work again, and nobody began any")
    after = [_contents(machine) for machine in world.machines.values()]
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
    return world.orders.is_done and not any(_left(world, machine, soon_ms) for machine in machines)


def _left(world: World, machine: Machine, soon_ms: int = _SOON_MS) -> list[str]:
    """What is not finished at a machine, with what is to come within some time."""
    if not machine.is_ready or machine.disk.is_in_transaction:
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
        *(
            str(flow_view(state))
            for state in heads_of(machine)
            if state.status not in TERMINAL_STATUSES
        ),
        *(f"{name} is due" for name, next_ms in schedules if next_ms <= until_ms),
    ]


def _describe(world: World) -> str:
    lines = [f"flows are stuck, {QUIET_S:g} s after healing"]
    for machine in world.machines.values():
        lines += [f"{machine.name}: {line}" for line in _left(world, machine) or ["nothing"]]
    books = world.orders
    waiting = [job.name for job in books.jobs.values() if not books.is_over(job)]
    lines.append(f"orders not done: {', '.join(waiting) or 'none'}")
    return "\n".join(lines)


def check_in_between(world: World) -> int:
    """What holds at any time; returns how many flows were run again."""
    count = 0
    for machine in world.machines.values():
        if not _has_tables(machine):
            continue
        count += check_unfinished(machine)
        for state in heads_of(machine):
            if state.status is FlowStatus.PARKED:
                check_parked(flow_view(state))
    return count


def _has_tables(machine: Machine) -> bool:
    tables = rows_of(machine, "SELECT 1 FROM sqlite_master WHERE name = 'postroad_flows'")
    return bool(tables) and not machine.disk.is_in_transaction


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
    ending = world.orders.endings.get(job.name)
    require(ending in (None, ending_of(case.head)), f"{job.name} was said to be {ending}: {case}")
    check_case(case)


def check_case(case: Case) -> None:
    if case.is_disturbed:
        _check_disturbed(case)
    else:
        _check_course(case)


def _check_course(case: Case) -> None:
    courses = {course.ending: course for course in courses_of(case.order)}
    course = courses.get(case.ending)
    require(course is not None, f"it must end as one of {list(courses)}: {case}")
    assert course is not None
    require(case.moves == course.moves, f"{dict(course.moves)} must be moved: {case}")
    require(case.responses == course.responses, f"{dict(course.responses)} must respond: {case}")
    errors = {state.failure.error_id for _, state in case.heads if state.failure is not None}
    is_one = case.order.renewals or case.order.kind == "split" or len(errors) <= 1
    require(bool(is_one), f"one failure has several names, {errors}: {case}")


def _check_disturbed(case: Case) -> None:
    """Somebody killed a part of it: no more can be said than that nothing was done twice."""
    allowed = possible_moves(case.order)
    for move, count in case.moves.items():
        require(move in allowed, f"nobody can move {move}: {case}")
        require(count == 1, f"{move} was done {count} times: {case}")
    if case.ending.startswith(("paid", "bought from")) and not case.ending.endswith("nobody"):
        balance = sum(move.amount for move in case.moves if move.what not in ("fee", "note"))
        require(balance == 0, f"money was lost or made: {case}")
