"""Connections that break, fall silent or lead elsewhere while mail is on its way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.durable.mail_pairs import (
    LIMITS,
    QUICK,
    Recorder,
    numbers_of,
    post_numbers,
    running_station,
    until_empty,
)

from .tcp_proxy import proxy_to

WATCHFUL = msgspec.structs.replace(LIMITS, heartbeat_interval_s=0.1, heartbeat_timeout_s=0.4)


async def test_half_open_connection_is_noticed_and_nothing_is_lost(tmp_path: Path) -> None:
    """B13: nothing is forwarded any more, and nobody closes anything."""
    async with (
        running_station("beta", tmp_path, limits=WATCHFUL) as beta,
        proxy_to(beta.address) as proxy,
        running_station("alpha", tmp_path, limits=WATCHFUL) as alpha,
    ):
        alpha.directory.set("beta", proxy.address)
        recorder = await Recorder.at(beta)
        await post_numbers(alpha, "beta", range(20))
        await recorder.until(20)
        proxy.mute()
        await post_numbers(alpha, "beta", range(20, 40))

        async def is_noticed() -> bool:
            bridge = (await alpha.mail.statistics()).peers["beta"].bridge
            return bridge is not None and bridge.last_error is not None

        await eventually(is_noticed, "the bridge has noticed")
        assert proxy.dropped > 0
        proxy.unmute()
        assert numbers_of(await recorder.until(40)) == list(range(40))
        await until_empty(alpha.mail, "beta")


async def test_answers_that_are_lost_bring_no_duplicates(tmp_path: Path) -> None:
    """B3: windows arrive, and the connection is cut before they are known to have."""
    async with (
        running_station("beta", tmp_path) as beta,
        proxy_to(beta.address) as proxy,
        running_station("alpha", tmp_path) as alpha,
    ):
        alpha.directory.set("beta", proxy.address)
        recorder = await Recorder.at(beta)
        for first in range(0, 400, 20):
            await post_numbers(alpha, "beta", range(first, first + 20))
            proxy.cut()
        assert numbers_of(await recorder.until(400)) == list(range(400))
        await until_empty(alpha.mail, "beta")
        assert len(recorder.attempts) == 400


async def test_delivery_continues_when_peer_moves(tmp_path: Path) -> None:
    """B8: the old address still answers, but nothing comes back from there."""
    patient = msgspec.structs.replace(QUICK, open_timeout_s=DEADLINE_S, window_timeout_s=DEADLINE_S)
    async with (
        running_station("beta", tmp_path) as beta,
        proxy_to(beta.address) as old,
        proxy_to(beta.address) as new,
        running_station("alpha", tmp_path, config=patient) as alpha,
    ):
        alpha.directory.set("beta", old.address)
        recorder = await Recorder.at(beta)
        await post_numbers(alpha, "beta", range(20))
        await recorder.until(20)
        old.mute()
        await post_numbers(alpha, "beta", range(20, 40))
        alpha.directory.set("beta", new.address)
        async with asyncio.timeout(10):
            # Before any time-out: what was on its way is sent again at once.
            assert numbers_of(await recorder.until(40)) == list(range(40))
        await until_empty(alpha.mail, "beta")
        assert new.carried > 0


async def test_peer_that_is_not_there_yet_costs_only_time(tmp_path: Path) -> None:
    async with running_station("beta", tmp_path) as beta:
        address = beta.address
    async with running_station("alpha", tmp_path) as alpha:
        alpha.directory.set("beta", address)
        await post_numbers(alpha, "beta", range(10))

        async def has_tried() -> bool:
            return any(bridge.last_error for bridge in (await alpha.mail.bridges.status()).bridges)

        await eventually(has_tried, "the bridge has tried")
        async with running_station("beta", tmp_path, bind=address) as beta:
            recorder = await Recorder.at(beta)
            assert numbers_of(await recorder.until(10)) == list(range(10))
