"""RoutingMgr and lm of real domains."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import msgspec
import pytest

from postroad.cells import CellDomain, CellMessage, Role, StaticCoreDiscovery
from postroad.cells.shell.routing_manager import RoutingManager
from postroad.core.errors import RemoteHandlerError
from postroad.net import MessagingService
from tests.support.cells.nodes import LIMITS, QUICK, Domains, Inbox
from tests.support.deadlines import eventually

NOBODY = "127.0.0.1:1"


async def rows(domain: CellDomain, cell: str, line: str) -> list[list[str]]:
    """The words of each line below the headings."""
    return [row.split() for row in (await domain.run_command(cell, line)).splitlines()[1:]]


# RoutingMgr.


async def test_what_peers_offer() -> None:
    async with Domains(2, 2) as domains:
        queues = [f"q{n}" for n in range(7)]
        domains["S2"].add_function("box", Inbox(), consume=queues, subscribe=["t"])
        await domains.settled()
        text = await domains["S1"].run_command("RoutingMgr@C1", "ls")
        heading, c2, s1, s2 = text.splitlines()
        assert " ".join(heading.split()) == "DOMAIN ROLE ZONE NUMBER BEHIND QUEUES TOPICS"
        assert re.fullmatch(r"C2 +core +- +#\d+ +no +- +-", c2)
        assert re.fullmatch(r"S1 +satellite +- +#\d+ +no +- +-", s1)
        assert re.fullmatch(r"S2 +satellite +- +#\d+ +no +q0, q1, q2, q3, q4 and 2 more +t", s2)
        full = await domains["S1"].run_command("RoutingMgr@C1", "ls S2")
        offered = re.split(r"TYPE +NAME\n", full)[1]
        assert [" ".join(line.split()) for line in offered.splitlines()] == [
            *(f"queue {name}" for name in queues),
            "topic t",
            "tunnel to C1",
            "tunnel to C2",
        ]
        with pytest.raises(RemoteHandlerError, match="no tunnel to domain 'S9'; see 'ls'"):
            await domains["S1"].run_command("RoutingMgr@C1", "ls S9")


async def test_cores_that_agree() -> None:
    async with Domains(2, 2) as domains:
        domains["S2"].add_function("box", Inbox(), consume=["q"])
        domains["C1"].add_function("box", Inbox(), consume=["q"], subscribe=["t"])
        await domains.settled()
        for cell in ("RoutingMgr@S1", "RoutingMgr@C1", "RoutingMgr@C2"):
            assert await domains["S1"].run_command(cell, "check") == "C1, C2 agree on 4 domains"
        assert json.loads(await domains["S1"].run_command("RoutingMgr", "check -json")) == {
            "is_consistent": True,
            "cores": ["C1", "C2"],
            "unreachable": {},
            "domains": 4,
            "differences": [],
        }


async def test_a_domain_without_a_tunnel_to_one_core() -> None:
    async with Domains(2, 1) as domains:
        some = StaticCoreDiscovery({"C1": [domains.services["C1"].address]})
        async with (
            MessagingService("test", "S9", "127.0.0.1:0", limits=LIMITS) as service,
            CellDomain(service, core_discovery=some, config=QUICK) as lonely,
        ):
            await eventually(lambda: "C1" in lonely.links.by_domain)
            await lonely.wait_routes_acknowledged()
            assert await rows(domains["S1"], "RoutingMgr@S1", "check") == [
                ["S9", "C2", "has", "no", "tunnel", "to", "it"]
            ]
            result = json.loads(await domains["C2"].run_command("RoutingMgr", "check -json"))
            assert not result["is_consistent"]
            assert result["differences"] == [
                {"domain": "S9", "core": "C2", "problem": "has no tunnel to it"}
            ]


class Forgetful(RoutingManager):
    """Knows nobody when it is asked for the first time."""

    was_asked = False

    def handle(self, message: CellMessage) -> Any:
        report = super().handle(message)
        if self.was_asked:
            return report
        self.was_asked = True
        return msgspec.structs.replace(report, peers={})


async def test_check_ignores_differences_that_pass() -> None:
    async with Domains(2, 1) as domains:
        forgetful = Forgetful()
        await domains["C2"].remove_cell("RoutingMgr")
        await domains["C2"].add_cell(forgetful)
        assert await domains["S1"].run_command("RoutingMgr", "check") == "C1, C2 agree on 3 domains"
        assert forgetful.was_asked


async def test_cores_that_do_not_answer() -> None:
    async with Domains(1, 0) as domains:
        cores = {"C1": [str(domains.services["C1"].address)], "C9": [NOBODY]}
        async with (
            MessagingService("test", "S9", "127.0.0.1:0", limits=LIMITS) as service,
            CellDomain(service, core_discovery=StaticCoreDiscovery(cores), config=QUICK) as domain,
        ):
            await eventually(lambda: domain.table.defaults() and "C9" in domain.dialer.failures)
            assert (await domain.run_command("RoutingMgr", "check")).splitlines() == [
                "core C9 did not reply: no route for RoutingMgr@C9 at C1",
                "C1 alone reports 2 domains",
            ]
            _, c1, c9 = (await domain.run_command("lm", "ls")).splitlines()
            assert re.fullmatch(r"C1 +- +yes +(-|[\d.]+ ms) +us +127\.0\.0\.1:\d+ +ok", c1)
            assert re.fullmatch(rf"C9 +- +no +- +us +{NOBODY} +\S.+", c9)
            assert not c9.endswith("ok")


async def test_missing_or_malformed_report_is_shown() -> None:
    async with Domains(2, 0) as domains:
        await domains["C2"].remove_cell("RoutingMgr")
        domains["C2"].add_function(
            "RoutingMgr", lambda message: {"own": "nothing", "known": [message.body]}
        )
        text = await domains["C1"].run_command("RoutingMgr", "check")
        assert text.startswith("core C2 did not reply: malformed report of a core")
        await domains["C2"].remove_cell("RoutingMgr")
        domains["C2"].add_function("RoutingMgr", _answer_never)
        text = await domains["C1"].run_command("RoutingMgr", "check -timeout_s=0.1")
        assert text.splitlines()[0] == "core C2 did not reply: no reply in time"
        await domains["C2"].remove_cell("RoutingMgr", 0.05)


async def _answer_never(message: CellMessage) -> None:
    await asyncio.Event().wait()


async def test_a_domain_that_is_alone() -> None:
    async with (
        MessagingService("test", "S9", "127.0.0.1:0") as service,
        CellDomain(service) as domain,
    ):
        assert await domain.run_command("RoutingMgr", "check") == "no cores are known"
        assert await domain.run_command("RoutingMgr", "ls") == "no tunnels"
        assert await domain.run_command("lm", "ls") == "no cores are known"
        assert len(await rows(domain, "System", "domains")) == 1


# lm.


async def test_locations_of_cores_are_listed() -> None:
    async with Domains(2, 1) as domains:
        address = domains.services["C2"].address
        (c2,) = await rows(domains["S1"], "lm@C1", "ls")
        assert [c2[0], c2[2], c2[-3], c2[-2], c2[-1]] == ["C2", "yes", "it", str(address), "ok"]
        c1, _ = await rows(domains["S1"], "lm", "ls")
        assert c1[-3] == "us"


async def test_unlisted_cores_are_marked() -> None:
    async with Domains(1, 0) as domains:
        cores = {"C1": [domains.services["C1"].address]}
        async with (
            MessagingService("test", "C9", "127.0.0.1:0", limits=LIMITS) as service,
            CellDomain(
                service,
                role=Role.CORE,
                zone="west",
                core_discovery=StaticCoreDiscovery(cores),
                config=QUICK,
            ),
        ):
            await eventually(lambda: "C9" in domains["C1"].links.by_domain)
            (c9,) = await rows(domains["C1"], "lm", "ls")
            assert c9[:3] == ["C9", "west", "yes"]
            assert " ".join(c9).endswith("it - not listed by core discovery")


async def test_cores_removed_from_discovery_are_marked() -> None:
    async with Domains(2, 1) as domains:
        dialer = domains["S1"].dialer
        dialer.set_cores(
            {name: location for name, location in dialer.cores.items() if name != "C2"}
        )
        c1, c2 = await rows(domains["S1"], "lm", "ls")
        assert c1[-1] == "ok"
        assert c2[2] == "yes"
        assert "not listed by core discovery for" in " ".join(c2)


async def test_discovery_statistics_are_shown() -> None:
    async with Domains(1, 1) as domains:
        text = await domains["S1"].run_command("lm@C1", "info")
        fields = dict(re.findall(r"^([\w ]+): +(.*)$", text, re.MULTILINE))
        assert fields["source"] == "StaticCoreDiscovery"
        assert (fields["is connected"], fields["is registered"], fields["cores"]) == (
            "yes",
            "yes",
            "0",
        )
        assert fields["last error"] == "-"
