"""The System cell of real domains: what it tells, and what it does."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator

import pytest

from postroad.cells import Cell, CellMessage, command
from postroad.cells.shell.log_buffer import LogBuffer
from postroad.core.errors import ConfigError, RemoteHandlerError, UsageError
from tests.support.cells.nodes import Domains, Inbox
from tests.support.deadlines import eventually


class Clerk(Cell):
    """Files papers.

    And this is for programmers.
    """

    def handle(self, message: CellMessage) -> object:
        return None

    @command("file")
    def file(self, paper: str, copies: int = 1) -> str:
        """File a paper."""
        return f"filed {paper} {copies} times"


@pytest.fixture
async def domains() -> AsyncIterator[Domains]:
    """Two cores and two satellites; `clerk` is in S2 and takes messages of a queue and a topic."""
    async with Domains(2, 2) as domains:
        await domains["S2"].add_cell(Clerk("clerk", consume=["papers"], subscribe=["gossip"]))
        await domains.settled()
        yield domains


async def refusal(domains: Domains, line: str, cell: str = "System@S2") -> str:
    with pytest.raises(RemoteHandlerError) as caught:
        await domains["S1"].run_command(cell, line)
    assert caught.value.remote_code in (ConfigError.code, UsageError.code, 7130, 7120, 7110)
    return caught.value.detail


async def say(domains: Domains, line: str, cell: str = "System@S2") -> str:
    return await domains["S1"].run_command(cell, line)


async def rows(domains: Domains, line: str, cell: str = "System@S2") -> list[list[str]]:
    """The words of each line below the headings."""
    return [row.split() for row in (await say(domains, line, cell)).splitlines()[1:]]


# What there is.


async def test_domain_asked_for_info_returns_identity_counters_and_tunnels(
    domains: Domains,
) -> None:
    text = await say(domains, "info")
    incarnation = domains["S2"].service.incarnation
    for line in ("domain: +S2", "role: +satellite", "zone: +-", f"incarnation: +{incarnation}"):
        assert re.search(f"^{line}$", text, re.MULTILINE)
    assert re.search(r"^uptime: +0:00:\d\d$", text, re.MULTILINE)
    assert re.search(r"^malformed: +0$", text, re.MULTILINE)
    _, s2, *peers = (await say(domains, "domains")).splitlines()
    assert s2.split()[:4] == ["S2", "satellite", "-", "yes"]
    assert [line.split()[:2] for line in peers] == [["C1", "core"], ["C2", "core"]]


async def test_cells_listed_with_pattern_are_those_that_match(domains: Domains) -> None:
    names = ["RoutingMgr", "System", "clerk", "lm", "tunnel-C1", "tunnel-C2"]
    assert [row[0] for row in await rows(domains, "ps")] == names
    heading, clerk = (await say(domains, "ps cl*")).splitlines()
    assert " ".join(heading.split()) == (
        "NAME DOMAIN STATE WAITING WAITING BYTES OLDEST WAIT S RUNNING HANDLED KIND DESCRIPTION "
        "IS SYSTEM CONSUMES SUBSCRIBES"
    )
    assert clerk.split() == [
        *("clerk", "S2", "idle", "0", "0", "-", "0", "0", "Clerk", "Files", "papers."),
        *("no", "papers", "gossip"),
    ]
    assert "tunnel to core C1" in await say(domains, "ps tunnel-C1")
    assert await say(domains, "ps nobody") == "none"


async def test_busy_cell_is_listed_as_busy(domains: Domains) -> None:
    go_on = asyncio.Event()

    async def work(message: CellMessage) -> None:
        await go_on.wait()

    domains["S2"].add_function("busy", work)
    calls = [asyncio.create_task(domains["S2"].call("busy", b"")) for _ in range(3)]
    await asyncio.sleep(0)
    _, row = (await say(domains, "ps busy")).splitlines()
    assert re.match(r"busy +S2 +busy +2 +\d+ +[\d.]+ +1 +1 ", row)
    go_on.set()
    await asyncio.gather(*calls)


class Shy(Clerk):
    def describe(self) -> str:
        raise ValueError("no")


async def test_failing_cell_description_hides_no_other_cell(domains: Domains) -> None:
    await domains["S2"].add_cell(Shy("shy"))
    text = await say(domains, "ps")
    assert "cannot describe itself: ValueError" in text
    assert "Files papers." in text
    assert "cannot describe itself: ValueError" in await say(domains, "info", "shy@S2")


async def test_every_cell_has_info_and_help(domains: Domains) -> None:
    info = await say(domains, "info", "clerk@S2")
    assert re.findall(
        r"^(?:cell|description|queues|topics|handled): +(.*)$", info, re.MULTILINE
    ) == ["clerk@S2", "Files papers.", "papers", "gossip", "1"]
    assert (await say(domains, "", "clerk@S2")).startswith(
        "file PAPER [-copies=COPIES]  File a paper."
    )
    assert await say(domains, "file 'a b' -copies=2", "clerk@S2") == "filed a b 2 times"
    assert await refusal(domains, "file", "clerk@S2") == (
        "file: `paper` is missing; usage: file PAPER [-copies=COPIES]"
    )
    assert "tunnel to satellite S2" in await say(domains, "info", "tunnel-S2@C1")


# Routes.


async def test_routes_are_listed_added_and_deleted(domains: Domains) -> None:
    assert (await say(domains, "routes -type=queue")).splitlines() == [
        "TYPE   DESTINATION  TARGET    ZONE",
        "queue  papers@*     clerk@S2  -",
    ]
    assert await say(domains, "routes -destination=nothing*") == "none"
    assert (await say(domains, "routes -target=*@C1 -type=default")).count("\n") == 1
    added = "queue letters@* -> clerk@S2"
    assert await say(domains, "route add letters clerk") == f"added {added}"
    assert (
        await refusal(domains, "route add letters clerk@S2")
        == f"cannot add route {added}: it exists already"
    )
    await domains.settled()
    await domains["S1"].call("letters", "by the new route")
    assert await say(domains, "route delete letters clerk") == f"deleted {added}"
    assert (
        await refusal(domains, "route delete letters clerk")
        == f"cannot delete route {added}: it does not exist"
    )


async def test_aliases_and_zones(domains: Domains) -> None:
    assert await say(domains, "route add -type=alias office clerk@S2", "System") == (
        "added alias office@local -> clerk@S2"
    )
    await domains["S1"].call("office", b"")
    assert await say(domains, "route add -zone=east -type=topic news clerk") == (
        "added topic news@* -> clerk@S2 zone east"
    )
    assert await say(domains, "route delete -type=topic news clerk") == (
        "deleted topic news@* -> clerk@S2"
    )


REFUSED_ROUTES = [
    (
        "route add q nobody",
        "cannot add route queue q@* -> nobody@S2: domain S2 has no cell nobody@S2",
    ),
    ("route add q clerk@S1", "has no cell clerk@S1"),
    ("route add", "route add: `route` is missing; usage: route add ROUTE... [-type=TYPE]"),
    ("route add a b c", "expected [DESTINATION] TARGET"),
    ("route add -type=default q clerk", "invalid cell 'q' in a route of type default"),
    ("route add -type=what q clerk", "route add: type: Invalid enum value 'what'; usage: "),
    ("route add a@b@c clerk", "name 'b@c' contains '@'"),
    ("route find ''", "PATH is empty"),
    ("route find papers -origin=S1", "no tunnel to domain 'S1'; tunnels: C1, C2"),
    ("route fnd papers", "unknown command 'route fnd'; did you mean 'route find'?"),
]


async def test_impossible_routes_are_refused(domains: Domains) -> None:
    before = domains["S2"].table
    for line, text in REFUSED_ROUTES:
        assert text in await refusal(domains, line), line
        assert domains["S2"].table is before


async def test_route_find_shows_the_whole_decision(domains: Domains) -> None:
    assert await say(domains, "route find papers") == (
        "queue papers@* -> clerk@S2: the consumer\n=> deliver to clerk for papers"
    )
    assert await say(domains, "route find papers", "System@C1") == (
        "queue papers@* -> *@S2: through tunnel-S2\n=> forward through tunnel-S2 towards S2"
    )
    assert await say(domains, "route find gossip -origin=C1") == (
        "topic gossip@* -> clerk@S2: a copy\nno other route for gossip@local\n"
        "=> deliver to clerk for gossip"
    )
    assert await say(domains, "route find papers -origin=C2", "System@C1") == (
        "no route for papers@local at C1\n=> fail: no route for papers@local at C1"
    )
    before = domains["S2"].statistics()
    text = await say(domains, "route find x", "System")
    assert re.fullmatch(
        r"default \*@\* -> \*@(C\d): through tunnel-\1\n=> forward through tunnel-\1 towards \1",
        text,
    )
    assert domains["S2"].statistics() == before


async def test_route_find_skips_draining_cells(domains: Domains) -> None:
    domains["S2"].add_function("other", Inbox(), consume=["papers"])
    assert await say(domains, "drain clerk") == "clerk is drained"
    assert "deliver to other" in await say(domains, "route find papers")
    assert "deliver to clerk" not in await say(domains, "route find clerk")
    assert await say(domains, "route find clerk@S2") == (
        "clerk@S2 is in this domain\n=> deliver to clerk"
    )
    assert "draining" in await say(domains, "ps clerk")


# What can be done.


async def test_a_killed_cell_is_gone_when_the_answer_comes(domains: Domains) -> None:
    assert await say(domains, "kill clerk") == "clerk is removed"
    assert "clerk" not in domains["S2"].cells
    assert await refusal(domains, "kill clerk") == "domain S2 has no cell 'clerk'"


async def test_built_in_cells_cannot_be_killed_or_drained(domains: Domains) -> None:
    for cell in ("System", "RoutingMgr", "lm"):
        refused = f"{cell} is a built-in cell and cannot be"
        assert await refusal(domains, f"kill {cell}") == f"{refused} killed"
        assert await refusal(domains, f"drain {cell}") == f"{refused} drained"
        assert cell in domains["S2"].cells
        with pytest.raises(RemoteHandlerError, match="accepts commands only; try 'help'"):
            await domains["S1"].call(f"{cell}@S2", "hello")


async def test_a_killed_tunnel_is_closed_and_dialed_again(domains: Domains) -> None:
    before = domains["S1"].links.by_domain["C1"]
    assert "tunnel-C1 is closed" in await say(domains, "kill tunnel-C1", "System")
    assert domains["S1"].links.by_domain.get("C1") is not before
    await eventually(lambda: domains["S1"].links.by_domain.get("C1") not in (before, None))
    assert "cannot be drained" in await refusal(domains, "drain tunnel-C2")


async def test_send_command_sends_its_text(domains: Domains) -> None:
    inbox = domains.add("S2", "box", Inbox())
    assert await say(domains, "send box@S2 'two  spaces' more -- -x", "System") == "sent to box@S2"
    await eventually(lambda: inbox.messages)
    assert inbox.messages[0].body == "two  spaces more -x"
    assert str(inbox.messages[0].sender) == "System@S1"


async def test_log_lines(domains: Domains) -> None:
    logger = logging.getLogger("postroad.cells")
    try:
        assert await say(domains, "log set debug") == "level debug"
        logger.debug("seen by operators")
        lines = (await say(domains, "log -lines=1")).splitlines()
        assert [line.partition(" DEBUG ")[2] for line in lines] == [
            "postroad.cells: seen by operators"
        ]
        assert re.search(r"^postroad\.cells +debug$", await say(domains, "log ls"), re.MULTILINE)
    finally:
        assert (await say(domains, "log reset")).startswith("level ")
    assert await refusal(domains, "log set loud") == (
        "log set: level: Invalid enum value 'loud'; usage: log set LEVEL"
    )
    assert await refusal(domains, "log -lines=0") == (
        "log: lines: Expected `int` >= 1; usage: log [-lines=LINES]"
    )


async def test_stopped_domain_leaves_no_log_handler() -> None:
    logger = logging.getLogger("postroad")
    level, handlers = logger.level, list(logger.handlers)
    async with Domains(1, 1) as domains:
        (pinboard,) = [handler for handler in logger.handlers if handler not in handlers]
        assert isinstance(pinboard, LogBuffer)
        await domains["S1"].run_command("System@C1", "log set error")
        assert logger.level == logging.ERROR
    assert logger.handlers == handlers
    assert logger.level == level


async def test_commands_between_two_domains_do_not_deadlock(domains: Domains) -> None:
    commands = (
        domains[here].run_command(f"System@{there}", f"traceroute System@{here}")
        for here, there in (("S1", "S2"), ("S2", "S1"), ("C1", "C2"))
        for _ in range(10)
    )
    for text in await asyncio.gather(*commands):
        assert {line.split()[-1] for line in text.splitlines()[1:]} == {"-"}


# Pings.


async def test_ping_of_cells_returns_each_round_trip(domains: Domains) -> None:
    pings = await rows(domains, "ping papers -count=5 -size=1000")
    assert [row[0] for row in pings] == ["1", "2", "3", "4", "5"]
    assert all(re.fullmatch(r"[\d.]+", row[1]) for row in pings)
    ((_, _, answered_by, error),) = await rows(domains, "ping papers", "System")
    assert (answered_by, error) == ("clerk@S2", "-")


async def test_ping_that_is_lost_three_times_in_a_row_ends(domains: Domains) -> None:
    text = await say(domains, "ping nobody@S1 -count=50")
    assert text.count("no cell 'nobody' in domain S1") == 3
    assert "no route for nobody@Nowhere" in await say(domains, "ping nobody@Nowhere")
    assert "no route for x@Nowhere" in await refusal(domains, "traceroute x@Nowhere")


async def test_ping_with_options_out_of_range_is_refused(domains: Domains) -> None:
    for options, text in [
        ("-count=0", "count: Expected `int` >= 1"),
        ("-count=99999999999999999999999", "count: Expected `int` <= 100"),
        ("-size=-1", "size: Expected `int` >= 0"),
        ("--timeout-s=0", "timeout_s: Expected `float` > 0.0"),
        ("-timeout_s=61", "timeout_s: Expected `float` <= 60.0"),
    ]:
        assert (await refusal(domains, f"ping clerk {options}")).startswith(
            f"ping: {text}; usage: ping PATH [-count=COUNT]"
        )


async def test_traceroute_returns_domains_out_and_back_in_order(domains: Domains) -> None:
    first, *between, last = await rows(domains, "traceroute clerk@S2", "System")
    assert first[:3] == ["S1", "yes", "yes"]
    assert last[0] == "S2" if len(between) == 1 else last[:3] == [last[0], "no", "yes"]
    assert {row[0] for row in between} <= {"C1", "C2", "S2"}
    text = await rows(domains, "traceroute clerk@S2:System@C1:System@S1", "System")
    assert {row[0] for row in text} >= {"S1", "S2", "C1"}
    assert [row[0] for row in await rows(domains, "traceroute clerk")] == ["S2"]


# Hostile input.


BAD_LINES = ["ps 'a", "ps a\0", "ps -=", "routes -type=queue -type=topic", "\x1b", "x" * 1_000_000]
BAD_LINES += ["route find " + ":" * 99]


async def test_bad_line_is_answered_and_does_no_harm(domains: Domains) -> None:
    for line in BAD_LINES:
        text = await refusal(domains, line)
        assert text.isprintable()
        assert "Traceback" not in text
    assert "S2" in await say(domains, "info")
