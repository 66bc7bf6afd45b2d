"""The lifecycle that all kinds of discovery share."""

import asyncio
import logging

import pytest

from postroad.cluster.discovery.background import SeedDiscovery, retry_delay_s
from postroad.core import Address
from tests.support.cluster.discovery_behaviour import OTHER, OWN, THIRD, Recorder


class Planted(SeedDiscovery):
    """Fails a given number of times, then finds a node."""

    def __init__(self, failures: int = 0, *, hangs: bool = False) -> None:
        super().__init__("planted", first_result_s=0.05)
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
        self._report.report_failure("key", "%s", text)


async def test_discovery_error_is_logged_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    discovery, reported = Planted(failures=1), Recorder()
    await discovery.start("own", OWN, reported)
    assert "discovery of seeds failed" in caplog.text
    await reported.until(OTHER)

    assert discovery.statistics().failures >= 1
    await discovery.stop()


async def test_discovery_publishes_changes_and_an_empty_first_result() -> None:
    discovery, reported = Planted(), Recorder()
    await discovery.start("own", OWN, reported)
    discovery.find(OTHER)
    discovery.find(OTHER, THIRD)
    discovery.find(THIRD, OTHER, OWN)
    await discovery.stop()
    discovery.find()
    assert reported.calls == [{OTHER}, {OTHER, THIRD}]
    assert discovery.withdrawals == 1

    discovery, reported = Planted(hangs=True), Recorder()
    await discovery.start("own", OWN, reported)
    assert reported.calls == [frozenset()]
    assert discovery.statistics().last_error == "no result within 0.05 s"
    await discovery.stop()


async def test_similar_failures_are_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    discovery = Planted()
    await discovery.start("own", OWN, Recorder())
    for number in range(5):
        discovery.complain(f"number {number}")
    await discovery.stop()

    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert warnings == ["planted: number 0"]
    assert discovery.statistics().failures == 5
    assert discovery.statistics().last_error == "number 4"


async def test_discovery_stop_with_a_cancelled_caller_continues() -> None:
    discovery = Planted()
    await discovery.start("own", OWN, Recorder())
    stop = asyncio.create_task(discovery.stop())
    await asyncio.sleep(0)
    stop.cancel()
    await asyncio.wait({stop})
    await discovery.stop()

    assert discovery.withdrawals == 1


def test_retry_delay_grows_to_the_maximum() -> None:
    assert 0.125 <= retry_delay_s(1) <= 0.25
    assert 2.5 <= retry_delay_s(50) <= 5
    assert retry_delay_s(1, 0.01) <= 0.01
