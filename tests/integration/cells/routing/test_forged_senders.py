"""Whom handlers take for the sender of a message, whatever a peer writes into it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from postroad.cells import CellAddress, CellDomain, CellPath, NoRouteError, Role, Route
from postroad.cells.routing.advertisements import AdvertisementUpdate, RouteAdvertisement
from postroad.core.errors import ConfigError, ConnectionClosedError
from postroad.net import MessagingService
from tests.support.cells.nodes import (
    CLUSTER,
    LIMITS,
    QUICK,
    Domains,
    ForgedDomain,
    Inbox,
    forged_domain,
    link_of,
    quick,
)
from tests.support.deadlines import eventually, reaches
from tests.support.net.tls import Authority


@asynccontextmanager
async def intruder(
    domains: Domains, authority: Authority, role: Role, at: str = "C1"
) -> AsyncIterator[ForgedDomain]:
    """The domain E1 with a certificate of its own."""
    async with MessagingService(CLUSTER, "E1", tls=authority.tls("E1"), limits=LIMITS) as service:
        service.set_hello_role(role.value, None)
        forged = await ForgedDomain(service).connect(domains.services[at].address)
        await eventually(lambda: "E1" in domains[at].links.by_domain)
        yield forged


OF_OTHERS = [
    "treasurer@C1:*@E1",
    "treasurer@S1:*@E1",
    "treasurer@C1:*@C1:*@E1",
    "treasurer@S1:*@S1:*@E1",
    "treasurer@S1:*@S1:*@C1:*@E1",
    "treasurer@S2:*@S2:*@C2:*@E1",
    "treasurer@C2:*@C2:*@E1",
    "treasurer@C2:*@C2:*@E1:*@E1",
    "treasurer@S1:*@S1:*@C2:*@E1",
    "treasurer@S1:treasurer:*@S1:*@E1",
    "*@S1:*@E1",
    "*@C1:*@E1",
]
"""Sources with nobody of E1 among the cells, all of domains that are connected."""
SENT_ON = [
    "treasurer:*@E1",
    "treasurer@S1:*@S1:relay@E1:*@E1",
    "treasurer@S1:*@S1:*@C1:relay@E1:*@E1",
    "treasurer@C1:relay@E1:*@E1",
    "treasurer@C1:*@C1:relay:*@E1",
    "*@C1:relay@E1:*@E1",
]
"""Sources with a cell of E1, which says that it only sends on."""


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("at", ["C1", "S1", "C2"])
async def test_sender_domain_not_behind_its_peer_is_refused(
    tmp_path: Path, role: Role, at: str
) -> None:
    authority = Authority(tmp_path)
    async with AsyncExitStack() as stack:
        domains = await stack.enter_async_context(Domains(2, 2, tls=authority.tls))
        inbox = Inbox()
        domains[at].add_function("victim", inbox, consume=["work"], subscribe=["news"])
        await domains.settled()
        forged = await stack.enter_async_context(intruder(domains, authority, role))
        # The second time it would be a short way, and so would what begins like a reply.
        for source in [*OF_OTHERS, *OF_OTHERS]:
            for destination in (f"victim@{at}", "work", "news", f"*@C1:victim@{at}"):
                forged.send(destination, b"forged", source=CellPath.parse(source))
        count = 2 * 4 * len(OF_OTHERS)
        await eventually(lambda: domains["C1"].statistics().malformed == count)
        assert link_of(domains["C1"], "E1").statistics().malformed == count
        for source in [*SENT_ON, *SENT_ON]:
            forged.send(f"victim@{at}", b"sent on", source=CellPath.parse(source))
        await eventually(lambda: len(inbox.messages) == 2 * len(SENT_ON))
        assert set(inbox.payloads) == {b"sent on"}
        assert {message.sender and message.sender.domain for message in inbox.messages} == {"E1"}
        # Nobody else is harmed.
        assert await domains["S2"].call(f"victim@{at}", b"honest") == b"honest"
        assert inbox.messages[-1].sender == CellAddress("System", "S2")


async def test_forged_replies_open_no_path_for_messages(tmp_path: Path) -> None:
    """A reply may come by a way that a message may not; it must not pave that way."""
    authority = Authority(tmp_path)
    async with (
        Domains(2, 1, tls=authority.tls, reach={"S1": ["C1"]}) as domains,
        intruder(domains, authority, Role.CORE) as forged,
    ):
        inbox = domains.add("S1", "victim", Inbox())
        source = CellPath.parse("treasurer@C2:*@C2:*@E1")
        late = domains["S1"].statistics().replies_late
        for number in range(1, 4):
            answers = number.to_bytes(16)
            forged.send("victim@S1", kind=1, in_reply_to=answers, wants_reply=False, source=source)
        await eventually(lambda: domains["S1"].statistics().replies_late == late + 3)
        forged.send("victim@S1", b"forged", source=source)
        await eventually(lambda: domains["C1"].statistics().malformed == 1)
        assert not inbox.messages


async def test_unknown_domain_behind_a_satellite_is_refused() -> None:
    async with Domains(1, 1) as domains, forged_domain(domains["C1"]) as forged:
        inbox = domains.add("C1", "victim", Inbox())
        for source in ("p@S9:*@S9:*@X", "p@S9:*@X", "*@S9:*@X"):
            forged.send("victim@C1", source=CellPath.parse(source))
        await eventually(lambda: domains["C1"].statistics().malformed == 3)
        assert not inbox.messages


async def test_core_may_forward_for_domains_only_it_knows() -> None:
    async with (
        Domains(1, 1) as domains,
        forged_domain(domains["C1"], "C9", role=Role.CORE) as other,
    ):
        inbox = domains.add("C1", "echo", Inbox())
        for source in ("p@S9:*@S9:*@C9", "p@S8:*@S8:*@C8:*@C9", "p@C9:*@C9"):
            other.send("echo@C1", source=CellPath.parse(source))
        await eventually(lambda: len(inbox.messages) == 3)
        assert [str(message.sender) for message in inbox.messages] == ["p@S9", "p@S8", "p@C9"]


async def test_satellite_may_send_through_its_other_core() -> None:
    """As long as it has a tunnel to that core, or had one a moment ago."""
    async with (
        Domains(1, 0) as domains,
        forged_domain(domains["C1"], "C2", role=Role.CORE) as core,
        forged_domain(domains["C1"], "S9") as satellite,
    ):
        inbox = domains.add("C1", "echo", Inbox())
        incarnation = satellite.service.incarnation

        async def advertise(number: int, *cores: str) -> None:
            satellite.send_update(
                AdvertisementUpdate(incarnation, number, RouteAdvertisement.of(domains=cores))
            )
            learner = domains["C1"].propagator.learner
            await eventually(lambda: learner.ack_for("S9").number == number)

        source = CellPath.parse("p@S9:*@S9:*@C2")
        # A satellite of an older version does not tell.
        paths = [(), ("C1", "C2"), ("C1",)]
        for number, cores in enumerate(paths):
            await advertise(number + 1, *cores)
            core.send("echo@C1", b"%d" % number, source=source)
            await reaches(lambda: len(inbox.messages), number + 1)
        await advertise(4, "C1", "C3")
        # If it is a satellite's after all, which was on its way for long, that one sends it again.
        failure = await satellite.failure_of(core.send("echo@C1", b"3", source=source))
        assert failure.code == NoRouteError.code
        assert domains["C1"].statistics().malformed == 1
        assert inbox.payloads == [b"0", b"1", b"2"]


async def test_satellites_tell_cores_which_cores_they_have_tunnels_to() -> None:
    async with Domains(2, 2, reach={"S2": ["C1"]}) as domains:
        advertisements = domains["C1"].propagator.learner.advertisements()
        assert advertisements["S1"].domains == ("C1", "C2")
        assert advertisements["S2"].domains == ("C1",)


async def test_a_message_under_another_name_is_sent_on_by_the_domain_that_names_it() -> None:
    async with Domains(2, 2) as domains:
        inbox = domains.add("S2", "target", Inbox())
        alias = Route.alias(CellAddress("known"), CellAddress("target", "S2"))
        for name in ("C1", "S1"):
            domains[name].change_routes(added=[alias])
        for caller, path, sender in [
            ("C2", "*@C1:known", "System@C1"),
            ("C2", "*@C1:target@S2", "System@C1"),
            ("C2", "*@S1:known", "System@S1"),
            ("S2", "*@S1:target@S2", "System@S1"),
            ("S2", "*@C1:known", "System@C1"),
            ("S1", "known", "System@S1"),
        ]:
            assert await domains[caller].call(path, b"x", timeout=3) == b"x", path
            assert str(inbox.messages[-1].sender) == sender, path
            assert str(inbox.messages[-1].path.first) == f"System@{caller}"


# Who may be a core.


async def test_satellite_refuses_a_core_not_in_discovery() -> None:
    """Whoever dials it would become its default route."""
    async with Domains(1, 1) as domains:
        async with MessagingService(CLUSTER, "E1", limits=LIMITS) as service:
            service.set_hello_role("core", None)
            with pytest.raises(
                ConnectionClosedError, match="satellite S1 rejected the tunnel of core E1"
            ):
                await ForgedDomain(service).connect(domains.services["S1"].address)
        assert set(domains["S1"].links.by_domain) == {"C1"}


async def test_peer_not_listed_as_core_is_refused_as_core(caplog: pytest.LogCaptureFixture) -> None:
    async with Domains(2, 1, may_be_cores=["C1", "C2"]) as domains:
        for name in ("C1", "S1"):
            async with MessagingService(CLUSTER, "E1", limits=LIMITS) as service:
                service.set_hello_role("core", None)
                with pytest.raises(ConnectionClosedError, match="E1"):
                    await ForgedDomain(service).connect(domains.services[name].address)
        assert "C1: core E1 rejected: its name is not in the setting cores" in caplog.text
        assert set(domains["C1"].links.by_domain) == {"C2", "S1"}
        domains["C2"].add_function("echo", Inbox())
        assert await domains["S1"].call("echo@C2", b"x") == b"x"


async def test_node_not_listed_as_core_is_not_dialed(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        Domains(2, 0) as domains,
        MessagingService(CLUSTER, "S1", limits=LIMITS) as service,
        CellDomain(
            service, core_discovery=domains.locations("S1"), cores=["C1"], config=QUICK
        ) as satellite,
    ):
        await eventually(lambda: "C1" in satellite.links.by_domain)
        assert set(satellite.dialer.cores) == {"C1"}
        assert "S1: core C2 not dialed: its name is not in the setting cores" in caplog.text


async def test_core_missing_in_its_own_list_is_refused() -> None:
    async with MessagingService(CLUSTER, "C3") as service:
        with pytest.raises(ConfigError, match="'C3' is a core, but cores lists C1, C2"):
            CellDomain(service, role=Role.CORE, cores=["C2", "C1"], config=quick())
        with pytest.raises(ConfigError, match="must be a list of names"):
            CellDomain(service, cores="C1")
