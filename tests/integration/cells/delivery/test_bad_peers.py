"""Peers that say what they should not: it is dropped or answered, counted, and all others go on."""

from __future__ import annotations

import asyncio
import os
import random
from itertools import product

import pytest

from postroad.cells import (
    CellAddress,
    CellBusyError,
    CellPath,
    HopLimitExceededError,
    MessageExpiredError,
    NoRouteError,
    Route,
)
from postroad.cells.delivery.envelope import Envelope, MessageKind
from postroad.cells.delivery.envelope_codec import encode_envelope
from postroad.core.errors import ConfigError, ConnectionClosedError, MalformedPayloadError
from postroad.net import MessagingService
from tests.support.cells.nodes import (
    CLUSTER,
    LIMITS,
    Domains,
    ForgedDomain,
    Gate,
    Inbox,
    beside_others,
    forged_domain,
    link_of,
    quick,
)
from tests.support.deadlines import eventually, reaches


def envelope_of(forged: ForgedDomain, **fields: object) -> Envelope:
    settings: dict[str, object] = {
        "id": os.urandom(16),
        "destination": CellPath.of("echo@C1"),
        "source": forged.path("p"),
        "wants_reply": True,
    }
    return Envelope(**settings | fields)  # type: ignore[arg-type]


# What is no message at all.


GARBAGE = [
    b"",
    b"\xc1",
    b"garbage" * 100,
    b"\x90",
    b"\x91" * 10_000,
    random.Random(1).randbytes(500),
    bytes(1 << 20),
]


async def test_garbage_is_dropped_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with beside_others() as (domains, forged):
        before = domains["C1"].statistics().malformed
        for subject, data in product(["cell", "routes", "unknown", ""], GARBAGE):
            forged.send_encoded(data, subject)
        # Of news that are large, only the latest are read.
        count = before + 4 * len(GARBAGE) - 1
        await eventually(lambda: domains["C1"].statistics().malformed == count)
        assert "C1: message of peer X dropped: " in caplog.text


async def test_message_with_a_forged_sender_is_dropped() -> None:
    async with beside_others() as (domains, forged):
        inbox = domains.add("C1", "victim", Inbox())
        sources = [("p@S1", "*@S1"), (), (f"*@{forged.name}", f"p@{forged.name}"), ("p@C1", "*@C1")]
        for number, source in enumerate(sources, 1):
            forged.send("victim@C1", b"forged", source=CellPath.of(*source))
            await reaches(lambda: domains["C1"].statistics().malformed, number)
        assert link_of(domains["C1"], "X").statistics().malformed == len(sources)
        assert not inbox.messages


# Messages that lead nowhere.


NOWHERE = {
    NoRouteError.code: ["nobody@C1", "nobody", "echo@S9", "*@C1", "*@C1:*@C1"],
    HopLimitExceededError.code: [
        "a",
        ":".join(["echo@C1"] * 64),
        ":".join(["echo@C1", "echo@S2"] * 32),
    ],
}


async def test_message_without_route_is_answered_with_a_failure() -> None:
    async with beside_others() as (domains, forged):
        for one, other in (("a", "b"), ("b", "a")):
            alias = Route.alias(CellAddress(one), CellAddress(other))
            domains["C1"].change_routes(added=[alias])
        for code, destinations in NOWHERE.items():
            for destination in destinations:
                failure = await forged.failure_of(forged.send(destination))
                assert failure.code == code, destination
                assert failure.domain in ("C1", "S2"), destination


@pytest.mark.parametrize("hops", [31, 62, 64])
async def test_long_source_paths(hops: int) -> None:
    async with beside_others() as (_domains, forged):
        source = forged.path(*["p"] * (hops - 1))
        near = await forged.answer_to(forged.send("echo@C1", b"x", source=source))
        assert near.payload == b"x"
        for far in ("echo@S2", "echo@C1:echo@S2", "echo@C1:echo@C1"):
            failure = await forged.failure_of(forged.send(far, source=source))
            assert failure.code == HopLimitExceededError.code


WALKED = [CellPath(), CellPath.of("echo@C1").advanced(), CellPath.of("echo@S2").advanced()]


async def test_consumed_path_is_answered_with_a_failure() -> None:
    async with beside_others() as (_domains, forged):
        for destination, kind in product(WALKED, MessageKind):
            answers = None if kind is MessageKind.MESSAGE else os.urandom(16)
            envelope = envelope_of(forged, destination=destination, kind=kind, in_reply_to=answers)
            forged.send_encoded(encode_envelope(envelope))
            if kind is MessageKind.MESSAGE:
                assert (await forged.failure_of(envelope.id)).code == NoRouteError.code


async def test_malformed_forwarded_messages_close_no_tunnel() -> None:
    """A core need not read all of what it sends on; the next domain does."""
    async with beside_others() as (domains, forged):
        inbox = domains.add("S2", "sink", Inbox())
        for _ in range(3):
            await forged.answer_to(forged.send("sink@S2", b"good"))
        good = encode_envelope(
            envelope_of(forged, destination=CellPath.of("sink@S2"), payload=b"good", ttl_ms=5_000)
        )
        for size in range(1, len(good)):
            forged.send_encoded(good[:size])
        for place in range(len(good)):
            forged.send_encoded(good[:place] + b"\xc1" + good[place + 1 :])
        forged.send_encoded(good)
        await eventually(lambda: inbox.payloads.count(b"good") >= 4)
        assert await domains["S1"].call("sink@S2", b"other") == b"other"
        assert "C1" in domains["S2"].links.by_domain


async def test_path_to_a_missing_cell_fails_in_its_domain() -> None:
    async with beside_others() as (_domains, forged):
        failure = await forged.failure_of(forged.send("*@C1:echo@S2:nobody@S1"))
        assert (failure.code, failure.domain) == (NoRouteError.code, "S1")


async def test_expired_message_is_answered_and_not_handled() -> None:
    async with beside_others() as (domains, forged):
        inbox, gate = Inbox(), Gate()
        domains["C1"].add_function("idle", inbox)
        domains["C1"].add_function("busy", gate)
        failure = await forged.failure_of(forged.send("idle@C1", ttl_ms=0))
        assert failure.code == MessageExpiredError.code
        assert not inbox.messages
        forged.send("busy@C1", b"working")
        late = forged.send("busy@C1", b"late", ttl_ms=1)
        await eventually(lambda: len(domains["C1"]._runner("busy").mailbox) == 1)
        await asyncio.sleep(0.005)
        gate.open()
        assert (await forged.failure_of(late)).code == MessageExpiredError.code
        assert gate.finished == [b"working"]


async def test_message_from_the_domain_itself_is_not_answered() -> None:
    """Else two domains could go on telling each other of failures."""
    async with beside_others() as (_domains, forged):
        alone = CellPath.of(f"*@{forged.name}")
        ids = [forged.send("nobody@C1", source=alone), forged.send("echo@C1", source=alone)]
        await forged.answer_to(forged.send("echo@C1"))
        assert not any(forged.answers_to(id) for id in ids)


async def test_unexpected_replies_are_not_answered() -> None:
    destinations = ["System@C1", "nobody@C1", "nobody", "x@S9", "echo@S2", "echo@C1:echo@C1"]
    async with beside_others() as (domains, forged):
        for destination, kind, payload in product(
            destinations, [MessageKind.REPLY, MessageKind.ERROR], [b"", b"garbage"]
        ):
            envelope = envelope_of(
                forged,
                destination=CellPath.parse(destination),
                kind=kind,
                in_reply_to=os.urandom(16),
                wants_reply=False,
                payload=payload,
            )
            forged.send_encoded(encode_envelope(envelope))
        await forged.answer_to(forged.send("echo@C1"))
        assert len(forged.envelopes) == 1
        for name in ("C1", "S1", "S2"):
            assert domains[name].statistics().failed == 0


async def test_undecodable_payload_is_answered() -> None:
    async with beside_others() as (domains, forged):
        domains["C1"].add_function("reader", lambda message: message.body)
        for content_type, payload in (
            ("text", b"\xff"),
            ("pickle", b"cos\nsystem\n"),
            ("json", b"{"),
        ):
            failure = await forged.failure_of(
                forged.send("reader@C1", payload, content_type=content_type)
            )
            assert failure.code == MalformedPayloadError.code


async def test_malformed_commands_and_pings_are_answered() -> None:
    async with beside_others() as (_domains, forged):
        for content_type, payload in (("command", b"\xff"), ("command", b"no such thing")):
            answer = await forged.answer_to(
                forged.send("System@C1", payload, content_type=content_type)
            )
            assert answer.kind is MessageKind.ERROR
        pong = await forged.answer_to(forged.send("echo@C1", b"\xff", content_type="postroad.ping"))
        assert pong.kind is MessageKind.REPLY


# Floods.


async def test_a_flood_is_refused_and_others_get_in() -> None:
    async with Domains(1, 2, config=quick(mailbox_messages_max=100)) as domains:
        gate = domains.add("C1", "slow", Gate())
        async with forged_domain(domains["C1"]) as forged:
            ids = [forged.send("slow@C1", b"flood") for _ in range(1_000)]
            await eventually(lambda: len(forged.envelopes) >= 1_000 - 51)
            calls = [
                asyncio.ensure_future(domains["S1"].call("slow@C1", b"%d" % n)) for n in range(20)
            ]
            await eventually(lambda: len(domains["C1"]._runner("slow").mailbox) == 70)
            refused = {envelope.in_reply_to for envelope in forged.envelopes}
            assert refused == set(ids[51:])
            assert (await forged.failure_of(ids[-1])).code == CellBusyError.code
            gate.open()
            assert [await call for call in calls] == [b"%d" % n for n in range(20)]
            await eventually(lambda: len(forged.envelopes) == 1_000)
            assert gate.finished.count(b"flood") == 51
            assert all(len(forged.answers_to(id)) == 1 for id in (ids[0], ids[50], ids[51]))


# Who may have a tunnel.


async def test_peer_with_an_invalid_role_or_name_is_refused() -> None:
    async with Domains(1, 1) as domains:
        for peer, name, role, text in (
            ("S1", "X", "satellite", "no tunnels between satellites: X and S1"),
            ("C1", "X", "", "X is no valid domain"),
            ("C1", "X", "king", "X is no valid domain"),
            ("C1", "n" * 255, "satellite", "name"),
        ):
            async with MessagingService(CLUSTER, name, limits=LIMITS) as service:
                service.set_hello_role(role, None)
                with pytest.raises(ConnectionClosedError, match=text):
                    await ForgedDomain(service).connect(domains[peer].service.address)
                assert set(domains[peer].links.by_domain) == {"C1", "S1"} - {peer}
        domains["C1"].add_function("echo", Inbox())
        assert await domains["S1"].call("echo", b"x") == b"x"


async def test_cell_with_the_name_of_a_tunnel_is_refused() -> None:
    """Else a cell would lose its name to whoever connects."""
    async with Domains(1, 1) as domains:
        with pytest.raises(ConfigError, match="tunnel-"):
            domains["C1"].add_function("tunnel-X", Inbox())
        async with forged_domain(domains["C1"]) as forged:
            assert "tunnel-X" in domains["C1"].cells
            domains["C1"].add_function("echo", Inbox())
            await forged.answer_to(forged.send("echo@C1"))


# Answers nobody asked it for.


async def test_reply_to_a_call_of_another_is_ignored() -> None:
    """Whoever has seen an id of a domain cannot guess those of its other messages."""
    async with Domains(1, 2) as domains, forged_domain(domains["C1"]) as forged:
        gate = domains.add("S2", "bank", Gate())
        await domains["S1"].send("spy@X", b"of no interest")
        await eventually(lambda: forged.envelopes)
        seen = int.from_bytes(forged.envelopes[0].id)
        call = asyncio.ensure_future(domains["S1"].call("bank@S2", b"balance"))
        await eventually(lambda: gate.begun)
        late = domains["S1"].statistics().replies_late
        for step in range(1, 21):
            guess = (seen + step).to_bytes(17)[-16:]
            forged.send(
                "System@S1", b"forged", kind=MessageKind.REPLY, in_reply_to=guess, wants_reply=False
            )
        await eventually(
            lambda: call.done() or domains["S1"].statistics().replies_late == late + 20
        )
        assert not call.done()
        gate.open()
        assert await call == b"balance"
