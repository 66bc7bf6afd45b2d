"""A process with flows is killed at each fault point, and all comes to the end it must come to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import postroad.flows  # noqa: F401 - it declares fault points
from postroad.core import fault_points as faults
from tests.chaos.flow_plots import PLOTS, Plot, Town
from tests.chaos.flow_processes import Died, all_ended, flow_nodes
from tests.chaos.kills import cover
from tests.support.durable.mail_processes import POSTGRES, SQLITE, introduce
from tests.support.flows import kill_scenarios as flow_scenarios
from tests.support.flows.kill_scenarios import KILLS, PAYEE, PAYER, THIRD, Kill

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERY = [(plot, kill) for plot, kills in KILLS.items() for kill in kills]


def points_and_plots(case: tuple[str, Kill]) -> set[str]:
    plot, kill = case
    return {plot, kill.point, kill.again}


CASES = [
    pytest.param(store, plot, kill, id=f"{store} {plot} {kill.name}".replace(" ", "-"))
    for store, cases in (
        (SQLITE, cover(EVERY, lambda case: {*points_and_plots(case), *case[1].ids.split()})),
        (POSTGRES, cover(EVERY[::-1], points_and_plots)),
    )
    for plot, kill in cases
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lasting_town(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Town]:
    directory = tmp_path_factory.mktemp("town")
    async with flow_nodes(directory, PAYER, PAYEE, THIRD, store=request.param) as banks:
        yield Town(*banks)


@pytest_asyncio.fixture(loop_scope="module")
async def town(lasting_town: Town) -> Town:
    """Three banks that run, whatever became of them before."""
    for bank in lasting_town:
        if bank.is_dead:
            await bank.start()
    introduce(*lasting_town)
    return lasting_town


@pytest.mark.parametrize(("lasting_town", "plot", "kill"), CASES, indirect=["lasting_town"])
async def test_flows_around_a_kill_come_to_their_end(plot: str, kill: Kill, town: Town) -> None:
    story = PLOTS[plot](town, f"{plot} {kill.victim} {kill.name}".replace(" ", "-"))
    await tell_with_a_death(town, story, kill)


FORMS = ("pay", "be paid", "browse", "run an errand", "run errands", "choose", "call a subflow")
"""What is also written as plain functions."""
IN_BOTH_FORMS = [
    pytest.param(SQLITE, plot, kill, forms, id=f"{plot} {kill.name} {forms[1]}".replace(" ", "-"))
    for plot, kill in cover(
        [case for case in EVERY if case[0] in FORMS and not case[1].again], points_and_plots
    )
    for forms in (("usual", "plain"), ("plain", "usual"), ("plain", "plain"))
]


@pytest.mark.parametrize(
    ("lasting_town", "plot", "kill", "forms"), IN_BOTH_FORMS, indirect=["lasting_town"]
)
async def test_flows_go_on_after_a_kill_in_either_form(
    plot: str, kill: Kill, forms: tuple[str, str], town: Town
) -> None:
    name = f"{plot} {kill.victim} {kill.name} {' '.join(forms)}".replace(" ", "-")
    story = PLOTS[plot](town, name)
    victim = town.find(kill.victim)
    await victim.kill()
    await victim.start(forms[0])
    introduce(*town)
    await tell_with_a_death(town, story, kill, forms[1])


async def tell_with_a_death(town: Town, story: Plot, kill: Kill, code: str = "usual") -> None:
    """Have a story happen in which somebody dies, and comes back with some code."""
    victim = town.find(kill.victim)
    victim.tell("arm", kill.point, kill.where, kill.nth)
    acting = asyncio.get_running_loop().create_task(story.act())
    try:
        await live_through(town, story, kill, code)
        try:
            outcome = await acting
        except Died:
            outcome = await story.act()
    finally:
        acting.cancel()
        await asyncio.gather(acting, return_exceptions=True)
    await all_ended(*town, after=str(kill))
    story.check(outcome)
    assert [bank.dead for bank in town] == [[]] * len(town)


async def live_through(town: Town, story: Plot, kill: Kill, code: str) -> None:
    """Wait until the victim dies, and start it again."""
    victim = town.find(kill.victim)
    await victim.dies()
    story.on_death()
    if kill.again:
        await victim.launch("usual", kill.again, "-", "1")
        await victim.dies()
    await victim.start(code)
    introduce(*town)


async def test_every_fault_point_of_flows_kills_somebody() -> None:
    points = {name for name in faults.fault_point_names() if name.startswith("flows.")}
    kills = [kill for kills in KILLS.values() for kill in kills]
    killing = {it for kill in kills for it in (kill.point, kill.again)}
    assert points - killing == {*flow_scenarios.SCHEDULED, *flow_scenarios.DISK}


async def test_every_scenario_is_told_and_played() -> None:
    played = {id for kills in KILLS.values() for kill in kills for id in kill.ids.split()}
    expected = flow_scenarios.ALL - flow_scenarios.TROUBLES
    assert expected <= played <= flow_scenarios.ALL
    lines = (flow_scenarios.__doc__ or "").splitlines()
    told = [line.split()[0] for line in lines if line[:1] in "SRFP" and line[1:2].isdigit()]
    assert sorted(told) == sorted(flow_scenarios.ALL)
