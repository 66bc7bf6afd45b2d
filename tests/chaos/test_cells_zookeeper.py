"""Domains in processes of their own that find each other by ZooKeeper, while that is away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.cells.call_load import PATIENT_S, CallLoad, check_accounts, say
from tests.support.cells.domain_processes import fabric
from tests.support.servers.zookeeper import SESSION_TIMEOUT_S, disturbed_zookeeper
from tests.support.tiers import by_tier

OUTAGE_S_MIN = by_tier(test=1.5, nightly=3.0) * SESSION_TIMEOUT_S
"""By then every session is over, as soon as there is a server again to say so."""
OUTAGE_S_MAX = 60.0
PAUSE_S = 0.05
"""Between two calls of a caller: it is about every call being answered, not about many."""


async def test_traffic_does_not_notice_that_zookeeper_hangs_or_is_away(
    tmp_path: Path, chaos_seconds: float, capfd: pytest.CaptureFixture[str]
) -> None:
    outage_s = min(OUTAGE_S_MAX, max(OUTAGE_S_MIN, chaos_seconds))
    with disturbed_zookeeper() as server:
        async with (
            fabric(tmp_path, zookeeper=server.hosts) as running,
            CallLoad(running.caller, timeout_s=PATIENT_S, pause_s=PAUSE_S) as load,
        ):
            before = await running.all_tunnels()
            await load.answers()
            server.pause()
            # The outage is what is tested.
            await asyncio.sleep(outage_s)
            server.resume()
            # By then those who would have lost a core have lost it.
            await asyncio.sleep(OUTAGE_S_MIN)
            await load.answers()
            assert await running.all_tunnels() == before

            server.kill()
            newcomer = await running.add_satellite("S7")
            await asyncio.sleep(outage_s)
            assert (await newcomer.status()).tunnels == {}
            await load.answers()
            await asyncio.to_thread(server.start)
            await running.is_whole()
            await asyncio.sleep(OUTAGE_S_MIN)
            await load.answers()
            await load.stop()
            say(capfd, f"ZooKeeper stood still, and was away, for {outage_s:g} s, {load}")
            after = await running.all_tunnels()
            check_accounts(running, load)
            assert load.errors == {}
            assert newcomer.handled() != []
            for name, tunnels in before.items():
                assert tunnels.items() <= after[name].items()
