"""Domains in processes of their own: cores restarted, killed and paused while calls are made."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from postroad.core.errors import ReplyTimeoutError
from tests.support.cells.call_load import HASTY_S, PATIENT_S, CallLoad, check_accounts, say
from tests.support.cells.domain_node import LIMITS, QUEUE
from tests.support.cells.domain_processes import DomainProcess, Fabric, fabric
from tests.support.deadlines import DEADLINE_S
from tests.support.tiers import by_tier, sample

AFTERWARDS = 1_000_000_000
"""The number of the first call that is made when all is over."""


async def go_round(
    processes: list[DomainProcess],
    seconds: float,
    hurt: Callable[[DomainProcess], Awaitable[None]],
) -> int:
    """Have something happen to each in turn, at least once and for so long; how often."""
    deadline = asyncio.get_running_loop().time() + seconds
    times = 0
    while times < len(processes) or asyncio.get_running_loop().time() < deadline:
        await hurt(processes[times % len(processes)])
        times += 1
    return times


# The first fills the tunnels, so that there is always something that waits for them.
@pytest.mark.parametrize("payload_bytes", sample([300_000, 0], 1))
async def test_cores_restarted_one_after_the_other_fail_no_call(
    tmp_path: Path,
    chaos_seconds: float,
    payload_bytes: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with (
        fabric(tmp_path) as running,
        CallLoad(running.caller, timeout_s=PATIENT_S, payload_bytes=payload_bytes) as load,
    ):

        async def restart(core: DomainProcess) -> None:
            await load.answers()
            await core.terminate()
            await load.answers()
            await core.start()
            # With both gone there would be no way at all.
            await running.is_whole()

        times = await go_round(running.cores, chaos_seconds, restart)
        await load.answers()
        await load.stop()
        say(capfd, f"{times} restarts, {payload_bytes} bytes, {load}")
        check_accounts(running, load)
        assert load.errors == {}


async def test_processes_killed_one_after_the_other_lose_only_what_was_in_them(
    tmp_path: Path, chaos_seconds: float, capfd: pytest.CaptureFixture[str]
) -> None:
    async with fabric(tmp_path) as running, CallLoad(running.caller, timeout_s=HASTY_S) as load:

        async def kill(victim: DomainProcess) -> None:
            await load.answers()
            await victim.kill()
            async with asyncio.timeout(DEADLINE_S):
                if victim in running.satellites:
                    for core in running.cores:
                        await is_forgotten(core, victim.name)
                await load.answers()
                # At the same place.
                await victim.start()
                await running.is_whole()
                if victim in running.satellites:
                    await works_again(victim)
            await check_routes(running)

        times = await go_round(running.processes, chaos_seconds, kill)
        await load.stop()
        say(capfd, f"{times} kills, {load}")
        check_accounts(running, load)
        # What was in the process, or on its way to it, is all that may be lost.
        assert set(load.errors) <= {ReplyTimeoutError.__name__}
        await nobody_is_harmed(running)


async def test_cores_paused_for_a_moment_harm_nobody_and_for_longer_are_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with fabric(tmp_path) as running:
        before = await running.all_tunnels()
        async with CallLoad(running.caller, timeout_s=PATIENT_S) as patient:
            await patient.answers()
            for core in running.cores:
                core.signal(signal.SIGSTOP)
                # Not long enough for anybody to be taken for dead.
                await asyncio.sleep(LIMITS.heartbeat_timeout_s / 4)
                core.signal(signal.SIGCONT)
                await patient.answers()
            await patient.stop()
            say(capfd, f"two short pauses, {patient}")
            assert patient.errors == {}
            assert await running.all_tunnels() == before
        async with CallLoad(running.caller, timeout_s=HASTY_S, first=patient.made + 1) as load:
            await load.answers()
            # All calls go by the same core, and by the other one when it is gone.
            sent = {
                core: running.caller.links.by_domain[core.name].statistics().sent
                for core in running.cores
            }
            used, other = sorted(running.cores, key=lambda core: -sent[core])
            for frozen, remaining in [(used, other), (other, used)][: by_tier(test=1, nightly=2)]:
                frozen.signal(signal.SIGSTOP)
                await running.until_defaults({remaining.name})
                # By then the calls that are in the frozen core have timed out.
                await asyncio.sleep(HASTY_S)
                await load.answers()
                frozen.signal(signal.SIGCONT)
                await running.is_whole()
                await load.answers()
            await load.stop()
        late = running.caller.statistics().replies_late
        say(capfd, f"long pauses, {load}, {late} late replies")
        check_accounts(running, patient, load)
        assert load.errors.keys() == {ReplyTimeoutError.__name__}
        await nobody_is_harmed(running)


async def is_forgotten(core: DomainProcess, name: str) -> None:
    """Wait until a core has no route to a domain: neither a tunnel nor a way round."""
    while name in await core.command("System", "routes"):  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.02)


async def works_again(satellite: DomainProcess) -> None:
    """Wait until its worker is given something."""
    before = len(satellite.handled())
    while len(satellite.handled()) == before:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.05)


async def check_routes(running: Fabric) -> None:
    """Every core has one route to each worker, and all cores agree."""
    for core in running.cores:
        routes = await core.command("System", f"routes -type=queue -destination={QUEUE}@*")
        for satellite in running.satellites:
            assert routes.count(f"*@{satellite.name}") == 1, routes
    agreed = await running.cores[0].command("RoutingMgr", "check")
    domains = len(running.processes) + 1
    assert agreed == f"C1, C2 agree on {domains} domains"


async def nobody_is_harmed(running: Fabric) -> None:
    """All calls are answered from now on, and nobody has sent what nobody understands."""
    async with CallLoad(running.caller, timeout_s=PATIENT_S, first=AFTERWARDS) as load:
        await load.answers()
        await load.stop()
        assert load.errors == {}
        assert running.caller.statistics().malformed == 0
        for process in running.processes:
            assert (await process.status()).counters["malformed"] == 0
