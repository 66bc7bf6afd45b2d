"""Datagrams: delivery, several listeners, and everything that is refused and counted."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from postroad.core.errors import ConfigError, MessageTooLargeError, NotRunningError, UsageError
from postroad.net import Address, DatagramService, RawMessage
from postroad.wire import encode_preamble
from tests.support.deadlines import eventually
from tests.support.net.peers import CLUSTER, nothing_left
from tests.support.net.raw_peers import both_loops
from tests.support.net.scripts import unused_address


class Two(NamedTuple):
    sender: DatagramService
    receiver: DatagramService
    seen: list[RawMessage]
    """What the receiver got with the subject `tick`."""

    async def is_heard(self, count: int = 1) -> None:
        await eventually(lambda: len(self.seen) == count)


@asynccontextmanager
async def two() -> AsyncIterator[Two]:
    async with (
        nothing_left(),
        DatagramService(CLUSTER, "one") as first,
        DatagramService(CLUSTER, "two") as second,
    ):
        pair = Two(first, second, [])
        second.subscribe("tick", pair.seen.append)
        yield pair


def throw(address: Address, *datagrams: bytes) -> None:
    """Send raw datagrams."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for datagram in datagrams:
            sock.sendto(datagram, address)


async def test_datagram_is_delivered_with_its_sender() -> None:
    async with two() as pair:
        payloads = [b"", b"tick", bytes(60_000)]
        for payload in payloads:
            assert await pair.sender.send(pair.receiver.address, "tick", payload)
        assert await pair.sender.send(str(pair.receiver.address), "tick", b"")
        await pair.is_heard(4)
        assert [message.payload for message in pair.seen] == [*payloads, b""]
        message = pair.seen[0]
        assert (message.subject, message.deadline) == ("tick", None)
        assert (message.sender, message.peer) == (pair.sender.address, "one")
        assert pair.sender.statistics().sent == pair.receiver.statistics().received == 4
        await pair.receiver.send(pair.receiver.address, "tick", b"to itself")
        await pair.is_heard(5)


async def test_several_listeners_hear_until_they_unsubscribe() -> None:
    async with two() as pair:
        first: list[RawMessage] = []
        add_first = first.append

        def once(message: RawMessage) -> None:
            calls.append(message)
            pair.receiver.unsubscribe("tick", once)

        calls: list[RawMessage] = []
        pair.receiver.subscribe("tick", add_first)
        pair.receiver.subscribe("tick", once)
        await pair.sender.send(pair.receiver.address, "tick", b"1")
        await eventually(lambda: first and pair.seen and calls)
        pair.receiver.unsubscribe("tick", add_first)
        await pair.sender.send(pair.receiver.address, "tick", b"2")
        await pair.is_heard(2)
        assert (len(first), len(calls)) == (1, 1)
        pair.receiver.unsubscribe("tick")
        pair.receiver.unsubscribe("tick")
        await pair.sender.send(pair.receiver.address, "tick", b"3")
        await eventually(lambda: pair.receiver.statistics().unhandled == 1)
        assert len(pair.seen) == 2


@both_loops
@pytest.mark.parametrize("failure", [ValueError, asyncio.CancelledError])
async def test_failing_listener_does_not_stop_the_others(
    failure: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_message: RawMessage) -> None:
        raise failure("deaf")

    async with two() as pair:
        pair.receiver.unsubscribe("tick")
        pair.receiver.subscribe("tick", fail)
        pair.receiver.subscribe("tick", pair.seen.append)
        for _ in range(10):
            await pair.sender.send(pair.receiver.address, "tick")
        await pair.is_heard(10)
        assert pair.receiver.statistics().handlers_failed == 10
    assert sum("deaf" in line for line in caplog.messages) == 1


async def test_foreign_cluster_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with two() as pair, DatagramService("another", "stranger") as stranger:
        for _ in range(5):
            await stranger.send(pair.receiver.address, "tick")
        await eventually(lambda: pair.receiver.statistics().refused == 5)
        await pair.sender.send(pair.receiver.address, "tick")
        await pair.is_heard()
    assert sum("another cluster" in line for line in caplog.messages) == 1


async def test_garbage_is_refused_and_counted() -> None:
    preamble = encode_preamble(CLUSTER)
    garbage = [
        b"",
        b"x",
        preamble,
        preamble + b"\x00\x00",
        preamble + b"\x00\x00\x00\x00",
        preamble + b"\xff\xff\xff\xff",
        preamble + b"\x7f\xff\xff\xff" + b"x" * 10,
        preamble + b"\x00\x00\x00\x01\xc1",
        preamble + b"\x00\x00\x00\x02\x91\x01",
        bytes(60_000),
    ]
    async with two() as pair:
        throw(pair.receiver.address, *garbage)
        await eventually(lambda: pair.receiver.statistics().refused == len(garbage))
        await pair.sender.send(pair.receiver.address, "tick", b"still here")
        await pair.is_heard()
        assert pair.receiver.statistics().received == 1


async def test_datagram_that_cannot_be_encoded_is_refused() -> None:
    async with two() as pair:
        with pytest.raises(MessageTooLargeError, match="65507"):
            await pair.sender.send(pair.receiver.address, "tick", bytes(65_507))
        with pytest.raises(UsageError, match="UTF-8"):
            await pair.sender.send(pair.receiver.address, "\ud800")
        assert pair.sender.statistics().sent == 0


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 300])
async def test_unresolvable_host(host: str, caplog: pytest.LogCaptureFixture) -> None:
    async with two() as pair:
        assert not await pair.sender.send(Address(host, 7), "tick")
        assert not await pair.sender.send(Address(host, 7), "tick")
        assert pair.sender.statistics().unresolved == 2
        assert pair.sender.statistics().sent == 0
    assert sum("host is unknown" in line for line in caplog.messages) == 1


async def test_datagram_host_name_resolves_without_receiver() -> None:
    async with two() as pair:
        for _ in range(3):
            assert await pair.sender.send(unused_address(), "tick")
            await pair.sender.send(Address("localhost", pair.receiver.address.port), "tick")
        await pair.is_heard(3)


async def test_not_running() -> None:
    unicast = DatagramService(CLUSTER, "alone")
    with pytest.raises(NotRunningError):
        await unicast.send("127.0.0.1:7", "tick")
    with pytest.raises(UsageError, match="start"):
        unicast.address  # noqa: B018
    await unicast.stop()
    await unicast.start()
    with pytest.raises(UsageError, match="started already"):
        await unicast.start()
    address = unicast.address
    assert repr(unicast) == f"<DatagramService alone at {address}>"
    await unicast.stop()
    await unicast.stop()
    with pytest.raises(NotRunningError):
        await unicast.send(address, "tick")
    assert repr(unicast) == "<DatagramService alone not running>"


async def test_stopped_while_resolving() -> None:
    unicast = DatagramService(CLUSTER, "alone")
    await unicast.start()
    sending = asyncio.create_task(unicast.send("localhost:7", "tick"))
    await asyncio.sleep(0)
    await unicast.stop()
    with pytest.raises(NotRunningError):
        await sending


# uvloop leaves the socket that it could not bind to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_address_in_use() -> None:
    async with DatagramService(CLUSTER, "one") as first:
        second = DatagramService(CLUSTER, "two", bind=first.address)
        with pytest.raises(ConfigError, match=f"at {first.address}"):
            await second.start()


async def test_advertised_address() -> None:
    async with two() as pair, DatagramService(CLUSTER, "three", advertise="elsewhere:0") as third:
        assert third.address.host == "elsewhere"
        assert third.address.port > 0
        await third.send(pair.receiver.address, "tick")
        await pair.is_heard()
        assert pair.seen[0].sender == third.address


# Posting, which waits for nothing.


async def test_post_is_sent_at_once_or_when_the_host_is_found() -> None:
    async with two() as pair:
        pair.sender.send_nowait(pair.receiver.address, "tick", b"1")
        assert pair.sender.statistics().sent == 1, "nothing had to be looked up"
        assert not pair.sender._lookups
        named = Address("localhost", pair.receiver.address.port)
        pair.sender.send_nowait(named, "tick", b"2")
        assert pair.sender.statistics().sent == 1
        await pair.is_heard(2)
        assert not pair.sender._lookups
        pair.sender.send_nowait(named, "tick", b"3")
        assert pair.sender.statistics().sent == 3, "it is remembered"
        await pair.is_heard(3)
        assert [message.payload for message in pair.seen] == [b"1", b"2", b"3"]


async def test_post_does_not_wait_behind_names_that_are_slow_to_find(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never = asyncio.Event()
    async with two() as pair:
        loop = asyncio.get_running_loop()

        async def hang(*_target: object, **_options: object) -> None:
            await never.wait()

        monkeypatch.setattr(loop, "getaddrinfo", hang)
        for number in range(300):
            pair.sender.send_nowait(Address(f"{number}.example", 7), "tick")
        assert len(pair.sender._lookups) == 256
        assert pair.sender.statistics().unresolved == 44, "more are dropped"
        pair.sender.send_nowait(pair.receiver.address, "tick")
        assert await pair.sender.send(pair.receiver.address, "tick")
        await pair.is_heard(2)


async def test_post_to_a_host_that_is_none_is_counted() -> None:
    async with two() as pair:
        hosts = ["no-such-host.invalid", "a..b", "x" * 300, "::1", "1.2.3", ""]
        for host in hosts:
            pair.sender.send_nowait(Address(host, 7), "tick")
        await eventually(lambda: not pair.sender._lookups)
        statistics = pair.sender.statistics()
        assert statistics.sent + statistics.unresolved == len(hosts)


async def test_send_nowait_invalid_datagram_raises_at_once() -> None:
    async with two() as pair:
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(MessageTooLargeError):
                pair.sender.send_nowait(Address(host, 7), "tick", bytes(70_000))
        assert not pair.sender._lookups
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(NotRunningError):
            pair.sender.send_nowait(Address(host, 7), "tick")


async def test_stop_drops_datagrams_waiting_for_lookup() -> None:
    async with nothing_left():
        unicast = DatagramService(CLUSTER, "alone")
        await unicast.start()
        unicast.send_nowait("localhost:7", "tick")
        assert len(unicast._lookups) == 1
        await unicast.stop()
        await eventually(lambda: not unicast._lookups)
        assert unicast.statistics().sent == 0
