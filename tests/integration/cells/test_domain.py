"""The life of a domain, with TLS too: starting, adding and removing cells, stopping."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from postroad import cells
from postroad.core.errors import ConfigError, NotRunningError, RemoteHandlerError, UsageError
from postroad.net import MessagingService
from tests.support.cells.nodes import CLUSTER, LIMITS, QUICK, Domains, Gate, Inbox, quick
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.peers import Stubborn, nothing_left
from tests.support.net.tls import Authority


class Careful(cells.Cell):
    """Notes what happens to it, and fails where it is told to."""

    def __init__(self, name: str = "careful", *, fails: str = "", **options: object) -> None:
        super().__init__(name, **options)  # type: ignore[arg-type]
        self._fails = fails
        self.log: list[str] = []

    async def on_start(self) -> None:
        await self._note("starting")

    def handle(self, message: cells.CellMessage) -> bytes:
        self.log.append("received")
        return message.payload

    async def on_stop(self) -> None:
        await self._note("stopping")

    async def _note(self, what: str) -> None:
        await asyncio.sleep(0)
        self.log.append(what)
        if self._fails == what:
            raise ValueError(f"failed when {what}")


async def test_domain_needs_a_service_and_starts_once() -> None:
    with pytest.raises(ConfigError, match="must be a MessagingService"):
        cells.CellDomain("C1")  # type: ignore[arg-type]
    async with MessagingService(CLUSTER, "S1", limits=LIMITS) as service:
        domain = cells.CellDomain(service, config=QUICK)
        with pytest.raises(NotRunningError, match="not started"):
            domain.send_nowait("a")
        with pytest.raises(NotRunningError):
            domain.add_function("a", Inbox())
        await domain.stop()
        await domain.start()
        assert repr(domain) == "<CellDomain satellite S1 running>"
        with pytest.raises(UsageError, match="is running; create a new one"):
            await domain.start()
        await domain.stop()
        await domain.stop()
        with pytest.raises(NotRunningError):
            await domain.call("a")
        with pytest.raises(UsageError, match="is stopped; create a new one"):
            await domain.start()


async def test_two_domains_on_one_service_are_refused() -> None:
    async with MessagingService(CLUSTER, "S1", limits=LIMITS) as service:
        async with cells.CellDomain(service, config=QUICK) as domain:
            domain.add_function("echo", Inbox())
            with pytest.raises(ConfigError, match="cannot accept tunnels twice"):
                await cells.CellDomain(service, config=QUICK).start()
            assert await domain.call("echo", b"x") == b"x"
        # Its place is free again.
        async with cells.CellDomain(service, config=QUICK) as domain:
            domain.add_function("echo", Inbox())
            assert await domain.call("echo", b"x") == b"x"


async def test_a_second_domain_that_was_refused_does_not_disturb_the_first() -> None:
    async with Domains(1, 1) as domains:
        service = domains.services["C1"]
        with pytest.raises(ConfigError):
            await cells.CellDomain(service, role=cells.Role.CORE, config=QUICK).start()
        domains["C1"].add_function("echo", Inbox())
        # Who connects now is still taken.
        async with MessagingService(CLUSTER, "S9", limits=LIMITS) as other:
            cores = cells.StaticCoreDiscovery({"C1": [service.address]})
            async with cells.CellDomain(other, core_discovery=cores, config=QUICK) as late:
                assert await late.call("echo", b"x", timeout=5) == b"x"


async def test_cell_lifecycle_methods_are_called_in_order() -> None:
    async with Domains(1, 1) as domains:
        domain, cell = domains["S1"], Careful(consume=["work"])
        await domain.add_cell(cell)
        assert "careful" in domain.cells
        assert await domain.call("work", b"x") == b"x"
        await domain.remove_cell("careful")
        assert cell.log == ["starting", "received", "stopping"]
        assert "careful" not in domain.cells
        with pytest.raises(UsageError):
            _ = cell.address
        await domain.add_cell(cell)
        await domain.stop()
        assert cell.log[3:] == ["starting", "stopping"]


async def test_cell_that_fails_to_start_is_stopped_and_removed() -> None:
    """Because it fails to start, its routes are refused, or its name is taken meanwhile."""
    async with Domains(1, 1) as domains:
        domain = domains["S1"]
        failing = Careful(fails="starting", consume=["work"])
        for _ in range(2):
            with pytest.raises(ValueError, match="failed when starting"):
                await domain.add_cell(failing)
        assert failing.log == ["starting", "stopping"] * 2
        refused = Careful(consume=["work", "work"])
        with pytest.raises(cells.DuplicateRouteError):
            await domain.add_cell(refused)
        assert "careful" not in domain.cells
        assert not domain.table.queues("work")
        late = Careful()
        adding = asyncio.ensure_future(domain.add_cell(late))
        await asyncio.sleep(0)
        domain.add_function("careful", Inbox())
        with pytest.raises(ConfigError, match="already"):
            await adding
        for cell in (refused, late):
            assert cell.log == ["starting", "stopping"]
            with pytest.raises(UsageError):
                _ = cell.address


async def test_cell_that_fails_to_stop_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    async with Domains(1, 1) as domains:
        domain = domains["S1"]
        for _ in range(2):
            await domain.add_cell(Careful(fails="stopping"))
            await domain.remove_cell("careful")
        assert "stop of cell careful failed" in caplog.text


async def test_a_cell_can_send_while_it_starts() -> None:
    async with Domains(1, 2) as domains:
        inbox = domains.add("S2", "inbox", Inbox())

        class Early(cells.Cell):
            """Greets before it can be reached."""

            async def on_start(self) -> None:
                await self.call("inbox@S2", b"I come")

            def handle(self, message: cells.CellMessage) -> None:
                """Never mind."""

        await domains["S1"].add_cell(Early("early"))
        assert inbox.payloads == [b"I come"]


async def test_a_cell_that_removes_itself_ends() -> None:
    async with Domains(1, 1, config=quick(stop_grace_s=0.3)) as domains:
        domain = domains["S1"]

        async def leave(message: cells.CellMessage) -> None:
            await domain.remove_cell("leaver")

        domain.add_function("leaver", leave)
        call = asyncio.ensure_future(domain.call("leaver", b"", timeout=DEADLINE_S))
        done, _ = await asyncio.wait({call}, timeout=DEADLINE_S)
        assert done
        # It may be answered, or told that it cannot be; not that it was too slow.
        error = call.exception()
        assert error is None or isinstance(error, RemoteHandlerError)
        if error is None:
            assert "leaver" not in domain.cells


async def test_uncancellable_handler_does_not_block_stop() -> None:
    with Stubborn() as stubborn:
        async with Domains(1, 1) as domains:
            domain = domains["S1"]
            domain.add_function("stubborn", stubborn)  # type: ignore[arg-type]
            await domain.send("stubborn")
            await eventually(lambda: stubborn.begun)
            stop = asyncio.ensure_future(domain.stop(0.1))
            done, _ = await asyncio.wait({stop}, timeout=DEADLINE_S)
            # Whatever comes of it, the test itself must end.
            stubborn.__exit__()
            assert done


async def test_cell_that_never_stops_does_not_block_stop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.cells.domain._CLEANUP_TIMEOUT_S", 0.05)
    let_go = asyncio.Event()

    class Endless(cells.Cell):
        """Cleans up for ever."""

        def handle(self, message: cells.CellMessage) -> None:
            """Never mind."""

        async def on_stop(self) -> None:
            await let_go.wait()

    async with Domains(1, 1) as domains:
        domain = domains["S1"]
        await domain.add_cell(Endless("endless"))
        stop = asyncio.ensure_future(domain.stop(0.1))
        done, _ = await asyncio.wait({stop}, timeout=DEADLINE_S)
        # Whatever comes of it, the test itself must end.
        let_go.set()
        assert done
        assert repr(domain) == "<CellDomain satellite S1 stopped>"
        assert "S1: stop of cell endless timed out" in caplog.text


async def test_failing_discovery_does_not_block_stop(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(cells.StaticCoreDiscovery):
        """Cannot say goodbye to whoever tells it of cores."""

        async def stop(self) -> None:
            raise RuntimeError("nobody listens")

    async with Domains(1, 0) as domains:
        core = domains["C1"]
        async with MessagingService(CLUSTER, "S1", limits=LIMITS) as service:
            cores = Failing({"C1": [core.service.address]})
            domain = cells.CellDomain(service, core_discovery=cores, config=QUICK)
            await domain.start()
            await eventually(lambda: "S1" in core.links.by_domain)
            async with asyncio.timeout(DEADLINE_S):
                await domain.stop()
            assert repr(domain) == "<CellDomain satellite S1 stopped>"
            await eventually(lambda: not core.links.by_domain)
        assert "S1: stop of core discovery failed" in caplog.text


async def test_stopped_domains_are_garbage_collected() -> None:
    async with nothing_left():
        for _ in range(3):
            async with Domains(2, 2) as domains:
                domains.add("S2", "worker", Inbox(), consume=["work"])
                assert await domains["S1"].call("work", b"x") == b"x"
                await domains["S1"].send("work", b"y")


async def test_cancelled_stop_still_stops() -> None:
    async with Domains(1, 1) as domains:
        domain = domains["S1"]
        gate = Gate()
        domain.add_function("slow", gate)
        await domain.send("slow")
        await eventually(lambda: gate.begun)
        stop = asyncio.ensure_future(domain.stop(0.2))
        await asyncio.sleep(0)
        stop.cancel()
        await asyncio.gather(stop, return_exceptions=True)
        await eventually(lambda: repr(domain) == "<CellDomain satellite S1 stopped>")
        assert gate.cancelled == 1


async def test_the_service_stops_before_its_domain() -> None:
    """The wrong order, but nothing hangs."""
    async with Domains(1, 2) as domains:
        domains["S2"].add_function("echo", Inbox())
        await domains.services["S1"].stop()
        async with asyncio.timeout(DEADLINE_S):
            await domains["S1"].stop()
        assert await domains["C1"].call("echo@S2", b"x") == b"x"


async def test_absent_core_is_dialed_until_it_starts() -> None:
    async with (
        MessagingService(CLUSTER, "C1", limits=LIMITS) as core_service,
        MessagingService(CLUSTER, "S1", limits=LIMITS) as service,
    ):
        cores = cells.StaticCoreDiscovery({"C1": [core_service.address]})
        async with cells.CellDomain(service, core_discovery=cores, config=QUICK) as satellite:
            await eventually(lambda: "C1" in satellite.dialer.failures)
            call = asyncio.ensure_future(satellite.call("echo", b"x", timeout=10))
            async with cells.CellDomain(core_service, role=cells.Role.CORE, config=QUICK) as core:
                core.add_function("echo", Inbox())
                assert await call == b"x"
                assert not satellite.dialer.failures


async def test_every_endpoint_of_a_core_is_tried() -> None:
    async with (
        MessagingService(CLUSTER, "C1", limits=LIMITS) as core_service,
        MessagingService(CLUSTER, "other", limits=LIMITS) as wrong,
        MessagingService(CLUSTER, "S1", limits=LIMITS) as service,
    ):
        endpoints = ["127.0.0.1:1", str(wrong.address), str(core_service.address)]
        cores = cells.StaticCoreDiscovery({"C1": endpoints})
        async with (
            cells.CellDomain(core_service, role=cells.Role.CORE, config=QUICK),
            cells.CellDomain(service, core_discovery=cores, config=QUICK) as satellite,
        ):
            await eventually(lambda: "C1" in satellite.links.by_domain)


async def test_messages_and_routes_go_through_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with Domains(2, 2, tls=authority.tls) as domains:
        inbox = domains.add("S2", "worker", Inbox(), consume=["work"], subscribe=["news"])
        await domains.settled()
        assert all(service.uses_tls for service in domains.services.values())
        for name in ("worker@S2", "work"):
            assert await domains["S1"].call(name, b"x") == b"x"
        domains["S1"].publish("news", b"y")
        await eventually(lambda: inbox.payloads == [b"x", b"x", b"y"])


async def test_a_domain_without_a_certificate_gets_no_tunnel(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with (
        Domains(1, 1, tls=authority.tls) as domains,
        MessagingService(CLUSTER, "S9", limits=LIMITS) as service,
    ):
        cores = cells.StaticCoreDiscovery({"C1": [domains.services["C1"].address]})
        async with cells.CellDomain(service, core_discovery=cores, config=QUICK) as plain:
            await eventually(lambda: "C1" in plain.dialer.failures)
            assert not plain.links.by_domain
        assert set(domains["C1"].links.by_domain) == {"S1"}
        domains["C1"].add_function("echo", Inbox())
        assert await domains["S1"].call("echo", b"x") == b"x"
