"""The life that all kinds of discovery share, beyond what their contract says."""

import asyncio
import logging

import pytest

from postroad.cluster.discovery.background import SeedDiscovery, retry_delay_s
from postroad.core import Address
from tests.support.cluster.discovery_behaviour import OTHER, OWN, THIRD, Told


class Planted(SeedDiscovery):
    """Fails as often as it is told to, then finds somebody."""

    def __init__(self, failures: int = 0, *, hangs: bool = False) -> None:
        super().__init__("planted", first_answer_s=0.05)
        self._failures_left = failures
        self._hangs = hangs
        self.withdrawals = 0

    async def _discover(self) -> None:
        if self._hangs:
            await asyncio.Event().wait()
        if self._failures_left:
            self._failures_left -= 1
            raise KeyError("defect")
        self._publish_addresses([OTHER, OWN])

    async def _deregister(self) -> None:
        self.withdrawals += 1

    def find(self, *addresses: Address) -> None:
        self._publish_addresses(addresses)

    def complain(self, text: str) -> None:
        self._warn("key", "%s", text)


async def test_a_defect_is_logged_and_the_search_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    discovery, told = Planted(failures=1), Told()
    await discovery.start("own", OWN, told)
    assert "discovery of seeds failed" in caplog.text
    await told.until(OTHER)

    assert discovery.statistics().failures >= 1
    await discovery.stop()


async def test_only_changes_are_told_and_a_hanging_search_starts_with_nobody() -> None:
    discovery, told = Planted(), Told()
    await discovery.start("own", OWN, told)
    discovery.find(OTHER)
    discovery.find(OTHER, THIRD)
    discovery.find(THIRD, OTHER, OWN)
    await discovery.stop()
    discovery.find()
    assert told.calls == [{OTHER}, {OTHER, THIRD}]
    assert discovery.withdrawals == 1

    discovery, told = Planted(hangs=True), Told()
    await discovery.start("own", OWN, told)
    assert told.calls == [frozenset()]
    assert discovery.statistics().last_error == "no result within 0.05 s"
    await discovery.stop()


async def test_similar_complaints_are_counted_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    discovery = Planted()
    await discovery.start("own", OWN, Told())
    for number in range(5):
        discovery.complain(f"number {number}")
    await discovery.stop()

    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert warnings == ["planted: number 0"]
    assert discovery.statistics().failures == 5
    assert discovery.statistics().last_error == "number 4"


async def test_a_stop_whose_caller_is_cancelled_goes_on() -> None:
    discovery = Planted()
    await discovery.start("own", OWN, Told())
    stop = asyncio.create_task(discovery.stop())
    await asyncio.sleep(0)
    stop.cancel()
    await asyncio.wait({stop})
    await discovery.stop()

    assert discovery.withdrawals == 1


def test_pauses_grow_to_a_limit() -> None:
    assert 0.125 <= retry_delay_s(1) <= 0.25
    assert 2.5 <= retry_delay_s(50) <= 5
    assert retry_delay_s(1, 0.01) <= 0.01
