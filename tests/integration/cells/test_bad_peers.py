"""Peers that say what they should not: it is dropped or answered, counted, and all others go on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from postroad.cells import (
    CellAddress,
    CellBusy,
    CellPath,
    Check,
    Envelope,
    Have,
    HopLimit,
    Kind,
    Leaving,
    MessageExpired,
    NoRoute,
    Offer,
    Role,
    Route,
    Snapshot,
    encode_envelope,
    encode_update,
)
from postroad.cells.links import ROUTES
from postroad.core.errors import ConnectionClosed, MalformedPayload
from postroad.net import MessagingService
from tests.cell_nodes import (
    CLUSTER,
    LIMITS,
    Domains,
    ForgedDomain,
    Gate,
    Inbox,
    forged_domain,
    link_of,
    quick,
    until,
)

pytestmark = pytest.mark.integration


@asynccontextmanager
async def beside_others(
    role: Role = Role.SATELLITE,
) -> AsyncIterator[tuple[Domains, ForgedDomain]]:
    """A forged domain at C1; in the end its tunnel, and everybody else, must be as before."""
    async with Domains(1, 2) as domains:
        inbox = Inbox()
        domains["C1"].add_function("echo", inbox)
        domains["S2"].add_function("echo", inbox)
        async with forged_domain(domains["C1"], role=role) as forged:
            yield domains, forged
            reply = await forged.answer_to(forged.send("echo@C1", b"still here"))
            assert reply.payload == b"still here"
            assert forged.lost_because is None
            assert await domains["S1"].call("echo@S2", b"x") == b"x"


def envelope_of(forged: ForgedDomain, **fields: object) -> Envelope:
    settings: dict[str, object] = {
        "id": os.urandom(16),
        "destination": CellPath.of("echo@C1"),
        "source": forged.path("p"),
        "wants_reply": True,
    }
    return Envelope(**settings | fields)  # type: ignore[arg-type]


# What is no message at all.


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"garbage" * 100, b"\x90", b"\x91" * 10_000, os.urandom(500), bytes(1 << 20)],
    ids=["empty", "invalid", "text", "no fields", "deep", "random", "large"],
)
@pytest.mark.parametrize("subject", ["cell", "routes", "unknown", ""])
async def test_garbage_is_dropped_and_counted(data: bytes, subject: str) -> None:
    async with beside_others() as (domains, forged):
        before = domains["C1"].statistics().malformed
        for _ in range(3):
            forged.post(data, subject)
        await until(lambda: domains["C1"].statistics().malformed == before + 3)


def _other_source(forged: ForgedDomain) -> CellPath:
    return CellPath.of("p@S1", "*@S1")


def _no_source(forged: ForgedDomain) -> CellPath:
    return CellPath()


def _cell_last(forged: ForgedDomain) -> CellPath:
    return CellPath.of(f"*@{forged.name}", f"p@{forged.name}")


def _own_source(forged: ForgedDomain) -> CellPath:
    return CellPath.of("p@C1", "*@C1")


@pytest.mark.parametrize("make_source", [_other_source, _no_source, _cell_last, _own_source])
async def test_whoever_claims_to_be_somebody_else_is_not_heard(
    make_source: Callable[[ForgedDomain], CellPath],
) -> None:
    async with beside_others() as (domains, forged):
        inbox = Inbox()
        domains["C1"].add_function("victim", inbox)
        forged.send("victim@C1", b"forged", source=make_source(forged))
        await until(lambda: domains["C1"].statistics().malformed == 1)
        assert link_of(domains["C1"], "X").statistics().malformed == 1
        assert not inbox.messages


async def test_a_malformed_message_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with beside_others() as (domains, forged):
        forged.post(b"garbage")
        await until(lambda: domains["C1"].statistics().malformed == 1)
        assert "C1: dropped what X sent: " in caplog.text


# Messages that lead nowhere.


@pytest.mark.parametrize(
    ("destination", "code"),
    [
        ("nobody@C1", NoRoute.code),
        ("nobody", NoRoute.code),
        ("echo@S9", NoRoute.code),
        ("*@C1", NoRoute.code),
        ("*@C1:*@C1", NoRoute.code),
        ("a", HopLimit.code),
        (":".join(["echo@C1"] * 64), HopLimit.code),
        (":".join(["echo@C1", "echo@S2"] * 32), HopLimit.code),
    ],
)
async def test_what_leads_nowhere_is_answered(destination: str, code: int) -> None:
    async with beside_others() as (domains, forged):
        for one, other in (("a", "b"), ("b", "a")):
            alias = Route.alias(CellAddress(one), CellAddress(other))
            domains["C1"].change_routes(added=[alias])
        failure = await forged.failure_of(forged.send(destination))
        assert failure.code == code
        assert failure.at in ("C1", "S2")


@pytest.mark.parametrize("hops", [31, 62, 64])
async def test_long_source_paths(hops: int) -> None:
    async with beside_others() as (_domains, forged):
        source = forged.path(*["p"] * (hops - 1))
        near = await forged.answer_to(forged.send("echo@C1", b"x", source=source))
        assert near.payload == b"x"
        for far in ("echo@S2", "echo@C1:echo@S2", "echo@C1:echo@C1"):
            failure = await forged.failure_of(forged.send(far, source=source))
            assert failure.code == HopLimit.code


WALKED = [CellPath(), CellPath.of("echo@C1").advanced(), CellPath.of("echo@S2").advanced()]


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("destination", WALKED, ids=str)
async def test_a_path_that_was_walked_already(destination: CellPath, kind: Kind) -> None:
    async with beside_others() as (_domains, forged):
        answers = None if kind is Kind.MESSAGE else os.urandom(16)
        envelope = envelope_of(forged, destination=destination, kind=kind, answers=answers)
        forged.post(encode_envelope(envelope))
        if kind is Kind.MESSAGE:
            assert (await forged.failure_of(envelope.id)).code == NoRoute.code


async def test_a_message_that_goes_straight_on_may_be_malformed_after_its_route() -> None:
    """A core need not read all of what it sends on; the next domain does."""
    async with beside_others() as (domains, forged):
        inbox = Inbox()
        domains["S2"].add_function("sink", inbox)
        for _ in range(3):
            await forged.answer_to(forged.send("sink@S2", b"good"))
        good = encode_envelope(
            envelope_of(forged, destination=CellPath.of("sink@S2"), payload=b"good", ttl_ms=5_000)
        )
        for size in range(1, len(good)):
            forged.post(good[:size])
        for place in range(len(good)):
            forged.post(good[:place] + b"\xc1" + good[place + 1 :])
        forged.post(good)
        await until(lambda: inbox.payloads.count(b"good") >= 4)
        assert await domains["S1"].call("sink@S2", b"other") == b"other"
        assert "C1" in domains["S2"].links.by_domain


async def test_a_path_through_nowhere_is_answered_from_where_it_ends() -> None:
    async with beside_others() as (_domains, forged):
        failure = await forged.failure_of(forged.send("*@C1:echo@S2:nobody@S1"))
        assert (failure.code, failure.at) == (NoRoute.code, "S1")


async def test_expired_message_is_answered_and_not_handled() -> None:
    async with beside_others() as (domains, forged):
        inbox, gate = Inbox(), Gate()
        domains["C1"].add_function("idle", inbox)
        domains["C1"].add_function("busy", gate)
        failure = await forged.failure_of(forged.send("idle@C1", ttl_ms=0))
        assert failure.code == MessageExpired.code
        assert not inbox.messages
        forged.send("busy@C1", b"working")
        late = forged.send("busy@C1", b"late", ttl_ms=1)
        await until(lambda: len(domains["C1"]._runner("busy").mailbox) == 1)
        await asyncio.sleep(0.005)
        gate.open()
        assert (await forged.failure_of(late)).code == MessageExpired.code
        assert gate.finished == [b"working"]


async def test_what_a_domain_itself_sent_is_not_answered() -> None:
    """Else two domains could go on telling each other of failures."""
    async with beside_others() as (_domains, forged):
        alone = CellPath.of(f"*@{forged.name}")
        ids = [forged.send("nobody@C1", source=alone), forged.send("echo@C1", source=alone)]
        await forged.answer_to(forged.send("echo@C1"))
        assert not any(forged.answers_to(id) for id in ids)


@pytest.mark.parametrize("kind", [Kind.REPLY, Kind.ERROR])
@pytest.mark.parametrize(
    "destination", ["System@C1", "nobody@C1", "nobody", "x@S9", "echo@S2", "echo@C1:echo@C1"]
)
async def test_answers_that_nobody_waits_for_are_not_answered(kind: Kind, destination: str) -> None:
    async with beside_others() as (domains, forged):
        for payload in (b"", b"garbage"):
            envelope = envelope_of(
                forged,
                destination=CellPath.parse(destination),
                kind=kind,
                answers=os.urandom(16),
                wants_reply=False,
                payload=payload,
            )
            forged.post(encode_envelope(envelope))
        await forged.answer_to(forged.send("echo@C1"))
        assert len(forged.envelopes) == 1
        for name in ("C1", "S1", "S2"):
            assert domains[name].statistics().failed == 0


async def test_undecodable_payload_is_answered() -> None:
    async with beside_others() as (domains, forged):
        domains["C1"].add_function("reader", lambda message: message.body)
        for content, payload in (("text", b"\xff"), ("pickle", b"cos\nsystem\n"), ("json", b"{")):
            failure = await forged.failure_of(forged.send("reader@C1", payload, content=content))
            assert failure.code == MalformedPayload.code


async def test_commands_and_pings_that_are_none_are_answered() -> None:
    async with beside_others() as (_domains, forged):
        for content, payload in (("command", b"\xff"), ("command", b"no such thing")):
            answer = await forged.answer_to(forged.send("System@C1", payload, content=content))
            assert answer.kind is Kind.ERROR
        pong = await forged.answer_to(forged.send("echo@C1", b"\xff", content="postroad.ping"))
        assert pong.kind is Kind.REPLY


# Floods.


async def test_a_flood_is_refused_and_others_get_in() -> None:
    async with Domains(1, 2, config=quick(mailbox_messages_max=100)) as domains:
        gate = Gate()
        domains["C1"].add_function("slow", gate)
        async with forged_domain(domains["C1"]) as forged:
            ids = [forged.send("slow@C1", b"flood") for _ in range(1_000)]
            await until(lambda: len(forged.envelopes) >= 1_000 - 51)
            calls = [
                asyncio.ensure_future(domains["S1"].call("slow@C1", b"%d" % n)) for n in range(20)
            ]
            await until(lambda: len(domains["C1"]._runner("slow").mailbox) == 70)
            refused = {it.answers for it in forged.envelopes}
            assert refused == set(ids[51:])
            assert (await forged.failure_of(ids[-1])).code == CellBusy.code
            gate.open()
            assert [await call for call in calls] == [b"%d" % n for n in range(20)]
            await until(lambda: len(forged.envelopes) == 1_000)
            assert gate.finished.count(b"flood") == 51
            assert all(len(forged.answers_to(id)) == 1 for id in (ids[0], ids[50], ids[51]))


# News.


async def test_news_of_another_incarnation_are_dropped() -> None:
    async with beside_others() as (domains, forged):
        own = forged.service.incarnation
        for number, incarnation in enumerate((own - 1, own + 1, 0, 2**62)):
            forged.tell(Snapshot(incarnation, number + 1, Offer.of(["forged"])))
            forged.tell(Leaving(incarnation))
        await until(lambda: domains["C1"].statistics().malformed == 8)
        assert not domains["C1"].table.queues("forged")
        forged.tell(Snapshot(own, 1, Offer.of(["real"])))
        await until(lambda: domains["C1"].table.queues("real"))


async def test_old_news_change_nothing() -> None:
    async with beside_others() as (domains, forged):
        own = forged.service.incarnation
        forged.tell(Snapshot(own, 5, Offer.of(["new"])))
        forged.tell(Snapshot(own, 4, Offer.of(["old"])))
        forged.tell(Check())
        await until(lambda: sum(isinstance(it, Have) for it in forged.updates) == 3)
        haves = [it for it in forged.updates if isinstance(it, Have)]
        assert [it.number for it in haves] == [5, 5, 5]
        assert domains["C1"].table.queues("new") and not domains["C1"].table.queues("old")


async def test_acknowledgements_of_what_was_never_sent_do_not_stop_the_sender() -> None:
    async with beside_others() as (domains, forged):
        own = domains["C1"].service.incarnation
        for have in (
            Have(own + 5, 7, b"x"),
            Have(own, 2**60, b"y" * 16),
            Have(0, 0, b""),
            Have(own, 1, b""),
        ):
            forged.tell(have)
        domains["C1"].add_function("new", Inbox(), consume=["work"])
        await until(lambda: any(_offers(it, "work") for it in forged.updates))
        await until(lambda: domains["S1"].table.queues("work"))


def _offers(update: object, queue: str) -> bool:
    return isinstance(update, Snapshot) and queue in update.offer.queues


async def test_news_that_break_the_rules_of_names_are_dropped() -> None:
    async with beside_others() as (domains, forged):
        own = forged.service.incarnation
        good = encode_update(Snapshot(own, 1, Offer.of(["queue-a", "queue-b"])))
        for old, new in (
            (b"queue-a", b"queue@a"),
            (b"queue-a", b"queue-z"),
            (b"queue-b", b"q:e*e b"),
        ):
            assert old in good
            forged.post(good.replace(old, new), ROUTES)
        await until(lambda: domains["C1"].statistics().malformed == 3)
        assert "X" not in {it.target.domain for it in domains["C1"].table if it.cell != "*"}


async def test_a_satellite_cannot_claim_the_way_to_others() -> None:
    """Only cores have tunnels that are of use to others."""
    async with beside_others() as (domains, forged):
        own = forged.service.incarnation
        forged.tell(Snapshot(own, 1, Offer.of(["work"], domains=["C1", "S1", "S2", "S9"])))
        await until(lambda: domains["C1"].table.queues("work"))
        for name in ("S1", "S2", "S9"):
            targets = {it.target for it in domains["C1"].table.domains(name)}
            assert CellAddress.of_domain("X") not in targets
        with pytest.raises(NoRoute):
            await domains["C1"].call("a@S9", wait=False)


async def test_a_core_cannot_take_over_domains_that_are_connected() -> None:
    async with beside_others(Role.CORE) as (domains, forged):
        own = forged.service.incarnation
        forged.tell(Snapshot(own, 1, Offer.of(["work"], domains=["C1", "S1", "S2", "S9"])))
        await until(lambda: domains["C1"].table.domains("S9"))
        assert await domains["C1"].call("echo@S2", b"x") == b"x"
        assert not forged.envelopes


async def test_a_queue_that_somebody_else_offers_does_not_hide_a_cell() -> None:
    async with beside_others() as (domains, forged):
        own = forged.service.incarnation
        forged.tell(Snapshot(own, 1, Offer.of(["System", "echo"], ["System", "echo"])))
        await until(lambda: domains["C1"].table.queues("echo"))
        for n in range(20):
            assert await domains["C1"].call("echo", b"%d" % n) == b"%d" % n
        assert not forged.envelopes


async def test_a_core_that_is_about_to_stop_is_left() -> None:
    async with Domains(1, 1) as domains, forged_domain(domains["S1"], "C9", role=Role.CORE) as core:
        core.tell(Snapshot(core.service.incarnation, 1, Offer()))
        await until(lambda: len(domains["S1"].table.defaults()) == 2)
        core.tell(Leaving(core.service.incarnation))
        await until(lambda: len(domains["S1"].table.defaults()) == 1)
        await until(lambda: any(isinstance(it, Have) and it.knows_leaving for it in core.updates))
        # It can still be asked for what only it has.
        assert "C9" in domains["S1"].links.by_domain


# Who may have a tunnel.


@pytest.mark.parametrize(
    ("peer", "name", "role", "text"),
    [
        ("S1", "X", "satellite", "X and S1 are both satellites"),
        ("C1", "X", "", "X is no domain"),
        ("C1", "X", "king", "X is no domain"),
        ("C1", "n" * 255, "satellite", "name"),
        ("C1", "local", "satellite", "local"),
    ],
)
async def test_who_is_no_proper_domain_is_refused(
    peer: str, name: str, role: str, text: str
) -> None:
    async with Domains(1, 1) as domains:
        try:
            service = MessagingService(CLUSTER, name, limits=LIMITS)
        except ValueError as error:
            assert text in str(error)
            return
        async with service:
            service.introduce(role, None)
            forged = ForgedDomain(service)
            with pytest.raises(ConnectionClosed, match=text):
                await forged.connect(domains[peer].service.address)
            assert set(domains[peer].links.by_domain) == {"C1", "S1"} - {peer}
        domains["C1"].add_function("echo", Inbox())
        assert await domains["S1"].call("echo", b"x") == b"x"


async def test_a_cell_keeps_its_name_whoever_connects() -> None:
    async with Domains(1, 1) as domains:
        try:
            domains["C1"].add_function("tunnel-X", Inbox())
        except ValueError:
            # Such a name is refused from the start: then nobody can lose it.
            return
        async with forged_domain(domains["C1"]):
            assert await domains["C1"].call("tunnel-X", b"x") == b"x"
        await until(lambda: "X" not in domains["C1"].links.by_domain)
        assert await domains["C1"].call("tunnel-X", b"x") == b"x"
