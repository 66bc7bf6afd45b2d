"""Schedules at the end of a run: one flow for each time, and none is left out."""

from __future__ import annotations

from datetime import datetime

from postroad.flows import CatchUp
from postroad.testing import require
from tests.simulation.durable.process import Machine
from tests.simulation.flows.findings import rows_of
from tests.simulation.flows.orders import Timetable
from tests.simulation.flows.world import World

_MINUTE_MS = 60_000


def check_schedules(world: World) -> int:
    """All of them; how many flows they have begun."""
    return sum(
        _check_schedule(world, world.machines[name], it)
        for name, timetables in world.flow_plan.schedules.items()
        for it in timetables
    )


def _check_schedule(world: World, machine: Machine, timetable: Timetable) -> int:
    name, step_ms = timetable.name, timetable.minutes * _MINUTE_MS
    ((next_ms, last_ms),) = rows_of(
        machine, f"SELECT next_ms, last_ms FROM postroad_flow_schedules WHERE name = '{name}'"
    )
    times = _times_of(machine, name)
    require(len(set(times)) == len(times), f"{name} was begun twice for one time: {times}")
    require(
        all(it % step_ms == 0 and it < next_ms for it in times),
        f"{name} was begun at {times}, and is due every {step_ms} ms and next at {next_ms}",
    )
    require(last_ms == max(times, default=None), f"{name} was begun at {times}, not at {last_ms}")
    if timetable.catch_up is CatchUp.ALL:
        first_ms = min([*times, world.orders.first_ms[name]])
        expected = list(range(first_ms, next_ms, step_ms))
        require(times == expected, f"{name} was begun at {times}, and was due at {expected}")
    elif timetable.catch_up is CatchUp.LAST and times:
        require(times[-1] == next_ms - step_ms, f"{name} was begun at {times}, next is {next_ms}")
    return len(times)


def _times_of(machine: Machine, name: str) -> list[int]:
    rows = rows_of(
        machine,
        f"SELECT client_id FROM postroad_flows WHERE client_id LIKE 'schedule:{name}:%'",
    )
    texts = [client_id.removeprefix(f"schedule:{name}:") for (client_id,) in rows]
    return sorted(round(datetime.fromisoformat(it).timestamp() * 1000) for it in texts)
