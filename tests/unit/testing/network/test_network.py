"""Every fault of the memory network: what peers see of it, and that it can be taken back."""

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator

import pytest

from postroad.core.errors import ConfigError, UsageError
from postroad.testing import LivenessFailure, SimCluster, SimNode

PORT = 7000


class End(asyncio.Protocol):
    """One end of a connection, with everything it was told."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.data = b""
        self.times: list[float] = []
        self.told: list[str] = []
        self.losses: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.times.append(asyncio.get_running_loop().time())

    def connection_lost(self, exc: Exception | None) -> None:
        self.losses.append(exc)

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")


class Mailbox(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.transport: asyncio.DatagramTransport
        self.received: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.DatagramTransport)
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.received.append(data)


class Pair:
    """Two nodes, each with a server and a mailbox, and a connection from alpha to beta."""

    def __init__(self, sim: SimCluster) -> None:
        self.sim = sim
        self.network = sim.network
        self.accepted: list[End] = []
        self.mailboxes: dict[str, Mailbox] = {}
        self.servers: dict[str, asyncio.Server] = {}
        self.alpha = sim.add("alpha", self._serve)
        self.beta = sim.add("beta", self._serve)
        self.alpha.start()
        self.beta.start()
        sim.run_for(1.0)

    async def _serve(self, node: SimNode) -> None:
        loop = asyncio.get_running_loop()
        self.servers[node.name] = await loop.create_server(self._accept, node.host, PORT)
        _, mailbox = await loop.create_datagram_endpoint(Mailbox, local_addr=(node.host, PORT))
        self.mailboxes[node.name] = mailbox
        await asyncio.Event().wait()

    def _accept(self) -> End:
        self.accepted.append(End())
        return self.accepted[-1]

    def connect(self, to: str = "beta", within: float = 600.0) -> tuple[End, End]:
        near = self.sim.run(self.dial(to), self.alpha, timeout=within)
        self.sim.run_for(0.1)
        return near, self.accepted[-1]

    async def dial(self, to: str = "beta") -> End:
        _, near = await asyncio.get_running_loop().create_connection(End, to, PORT)
        return near

    def post(self, count: int) -> None:
        for number in range(count):
            text = str(number).encode()
            self.mailboxes["alpha"].transport.sendto(text, (self.beta.host, PORT))


@pytest.fixture
def sim() -> Iterator[SimCluster]:
    with SimCluster(seed=5) as cluster:
        yield cluster


@pytest.fixture
def pair(sim: SimCluster) -> Pair:
    return Pair(sim)


@pytest.mark.parametrize("one_way", [False, True])
def test_data_waits_for_the_end_of_a_partition(pair: Pair, one_way: bool) -> None:
    near, far = pair.connect()
    pair.network.partition("alpha", {"beta"}, one_way=one_way)
    near.transport.write(b"to beta")
    far.transport.write(b"to alpha")
    pair.sim.run_for(60.0)
    assert far.data == b""
    assert near.data == (b"to alpha" if one_way else b"")
    pair.network.heal()
    pair.sim.run_for(1.0)
    assert (near.data, far.data) == (b"to alpha", b"to beta")
    assert near.losses == far.losses == []


def test_data_in_flight_is_blocked_by_a_partition_but_not_on_one_host(pair: Pair) -> None:
    near, far = pair.connect()
    near.transport.write(b"x" * 1000)
    pair.network.partition({"alpha"}, {"beta"})
    pair.sim.run_for(10.0)
    assert far.data == b""
    pair.network.heal({"beta"}, {"alpha"})
    pair.sim.run_for(1.0)
    assert far.data == b"x" * 1000

    pair.network.partition({"alpha", "beta"}, {"alpha", "beta"})
    near, far = pair.connect(to="alpha")
    near.transport.write(b"me")
    pair.sim.run_for(0.1)
    assert far.data == b"me"


@pytest.mark.parametrize("blocked", [("alpha", "beta"), ("beta", "alpha")])
def test_connection_that_stands_still_times_out(pair: Pair, blocked: tuple[str, str]) -> None:
    pair.network.stream_timeout_s = 30.0
    near, far = pair.connect()
    pair.network.partition(*blocked, one_way=True)
    near.transport.write(b"data, or its acknowledgement, does not get through")
    pair.sim.run_for(29.0)
    assert near.losses == []
    pair.sim.run_for(2.0)
    (error,) = near.losses
    assert isinstance(error, TimeoutError)
    assert error.errno == errno.ETIMEDOUT
    assert far.losses == []
    pair.network.heal()
    far.transport.write(b"to somebody who is gone")
    pair.sim.run_for(1.0)
    assert [type(loss) for loss in far.losses] == [ConnectionResetError]


def test_idle_connections_outlive_a_partition_and_datagrams_do_not(pair: Pair) -> None:
    near, far = pair.connect()
    near.transport.write(b"before")
    pair.sim.run_for(1.0)
    pair.network.partition({"alpha"}, {"beta"})
    pair.sim.run_for(5_000.0)
    pair.network.heal()
    near.transport.write(b" and after")
    pair.sim.run_for(1.0)
    assert far.data == b"before and after"

    pair.network.partition({"alpha"}, {"beta"})
    pair.post(3)
    pair.sim.run_for(1.0)
    pair.network.heal()
    pair.post(2)
    pair.sim.run_for(1.0)
    assert pair.mailboxes["beta"].received == [b"0", b"1"]


def test_connect_during_partition_waits_or_times_out(pair: Pair) -> None:
    pair.network.partition({"alpha"}, {"beta"})
    task = pair.sim.spawn(pair.dial(), pair.alpha)
    pair.sim.run_for(20.0)
    assert not task.done()
    pair.network.heal()
    pair.sim.run_for(1.0)
    assert task.done()
    assert len(pair.accepted) == 1

    pair.network.partition({"alpha"}, {"beta"})
    began = pair.sim.now
    with pytest.raises(TimeoutError) as caught:
        pair.sim.run(pair.dial(), pair.alpha)
    assert caught.value.errno == errno.ETIMEDOUT
    assert pair.sim.now == pytest.approx(began + pair.network.connect_timeout_s, abs=0.1)


def test_cancelled_connect_is_closed_at_the_other_side(pair: Pair) -> None:
    pair.network.set_conditions(delay_s=(1.0, 1.0))
    task = pair.sim.spawn(pair.dial(), pair.alpha)
    pair.sim.run_for(1.5)
    task.cancel()
    pair.sim.run_for(5.0)
    assert task.cancelled()
    (far,) = pair.accepted
    assert len(far.losses) == 1
    assert not pair.alpha.process.host.dialed._owners


def test_reset_connections_breaks_both_ends_after_set_delay(pair: Pair) -> None:
    near, far = pair.connect()
    local, _ = pair.connect(to="alpha")
    assert pair.network.reset_connections("beta", "alpha") == 1
    pair.sim.run_for(1.0)
    assert [type(loss) for loss in near.losses + far.losses] == 2 * [ConnectionResetError]
    assert local.losses == []
    assert pair.network.reset_connections("beta", "alpha") == 0

    near, far = pair.connect()
    pair.network.set_conditions(delay_s=(0.2, 0.3), between=("beta", "alpha"))
    sent = pair.sim.now
    near.transport.write(b"x")
    pair.sim.run_for(1.0)
    assert 0.2 <= far.times[0] - sent <= 0.3
    pair.network.reset_conditions()
    sent = pair.sim.now
    near.transport.write(b"y")
    pair.sim.run_for(1.0)
    assert far.times[-1] - sent <= 0.001


@pytest.mark.parametrize(
    ("fault", "holds"),
    [
        ("loss", lambda got: 20 < len(got) < 180 and got == sorted(got)),
        ("duplicate", lambda got: 220 < len(got) < 380 and set(got) == set(range(200))),
        ("reorder", lambda got: got != sorted(got) and sorted(got) == list(range(200))),
        (None, lambda got: got == list(range(200))),
    ],
)
def test_datagrams_suffer(
    pair: Pair, fault: str | None, holds: Callable[[list[int]], bool]
) -> None:
    if fault is not None:
        pair.network.set_conditions(**{fault: 0.5})  # type: ignore[arg-type]  # One of its options.
    pair.post(200)
    pair.sim.run_for(1.0)
    got = [int(payload) for payload in pair.mailboxes["beta"].received]
    assert holds(got), got


def test_wrong_faults_are_rejected(pair: Pair) -> None:
    for wrong in ({"loss": 1.5}, {"delay_s": (2.0, 1.0)}, {"between": ("alpha", "nobody")}):
        with pytest.raises(ConfigError):
            pair.network.set_conditions(**wrong)
    with pytest.raises(ConfigError, match="alpha, beta"):
        pair.network.partition("alpha", "nobody")
    with pytest.raises(ConfigError, match="more than 0"):
        pair.network.slow_reader("alpha", 0)
    with pytest.raises(UsageError, match="in use"):
        pair.sim.add("alpha", pair._serve)


def test_slow_reader_reads_no_faster(pair: Pair) -> None:
    near, far = pair.connect()
    pair.network.slow_reader("beta", 10_000)
    near.transport.write(bytes(1_000_000))
    assert near.told == ["pause"]
    pair.sim.run_for(10.0)
    assert 90_000 <= len(far.data) <= 110_000
    pair.network.slow_reader("beta", None)
    pair.sim.run_for(1.0)
    assert len(far.data) == 1_000_000
    assert near.told == ["pause", "resume"]


def test_paused_process_reads_data_after_resume(pair: Pair) -> None:
    near, far = pair.connect()
    pair.beta.pause()
    near.transport.write(bytes(1_000_000))
    pair.post(5)
    later = pair.sim.run(pair.dial(), pair.alpha)
    pair.sim.run_for(60.0)
    assert (far.data, pair.mailboxes["beta"].received) == (b"", [])
    assert near.told == ["pause"]
    assert near.transport.get_write_buffer_size() > 500_000
    pair.beta.resume()
    pair.sim.run_for(1.0)
    assert len(far.data) == 1_000_000
    assert len(pair.mailboxes["beta"].received) == 5
    assert later.losses == near.losses == []


def test_paused_process_reads_datagrams_up_to_buffer(pair: Pair) -> None:
    pair.beta.pause()
    for _ in range(100):
        pair.mailboxes["alpha"].transport.sendto(bytes(10_000), (pair.beta.host, PORT))
    pair.sim.run_for(1.0)
    pair.beta.resume()
    pair.sim.run_for(1.0)
    assert 10 <= len(pair.mailboxes["beta"].received) < 30

    pair.beta.pause()
    pair.sim.loop.call_soon(pair.servers["beta"].close, context=pair.beta.process.context.copy())
    near = pair.sim.run(pair.dial(), pair.alpha)
    pair.beta.resume()
    pair.sim.run_for(1.0)
    assert [type(loss) for loss in near.losses] == [ConnectionResetError]
    assert pair.accepted == []


def test_killed_process_sockets_are_closed_by_kernel(pair: Pair) -> None:
    near, far = pair.connect()
    far.transport.write(b"last words")
    pair.beta.kill()
    far.transport.write(b"from the grave")
    pair.sim.run_for(1.0)
    assert near.data == b"last words"
    assert near.losses == [None]
    assert far.losses == []
    with pytest.raises(ConnectionRefusedError):
        pair.sim.run(pair.dial(), pair.alpha)


def test_machine_without_power_says_nothing(pair: Pair) -> None:
    near, far = pair.connect()
    far.transport.write(b"on its way")
    pair.beta.lose_power()
    pair.sim.run_for(100.0)
    assert (near.data, near.losses) == (b"", [])
    near.transport.write(b"is anybody there?")
    with pytest.raises(LivenessFailure):
        pair.sim.run(pair.dial(), pair.alpha, timeout=60.0)
    assert near.losses == []
    pair.beta.start()
    pair.sim.run_for(1.0)
    assert [type(loss) for loss in near.losses] == [ConnectionResetError]
    assert len(pair.accepted) == 2


def test_silent_peer_is_found_out_only_by_writing_and_a_killed_one_by_a_reset(pair: Pair) -> None:
    near, _ = pair.connect()
    pair.beta.lose_power()
    pair.beta.start()
    pair.sim.run_for(1_000.0)
    assert near.losses == []
    near.transport.write(b"still there?")
    pair.sim.run_for(1.0)
    assert [type(loss) for loss in near.losses] == [ConnectionResetError]

    near, far = pair.connect()
    far.transport.pause_reading()
    near.transport.write(b"unread")
    pair.sim.run_for(1.0)
    pair.beta.kill()
    pair.sim.run_for(1.0)
    assert [type(loss) for loss in near.losses] == [ConnectionResetError]


def test_process_killed_while_dialing_leaves_no_connection(pair: Pair) -> None:
    pair.network.set_conditions(delay_s=(1.0, 1.0))
    for moment in (0.5, 1.5):
        pair.accepted.clear()
        pair.sim.spawn(pair.dial(), pair.alpha)
        pair.sim.run_for(moment)
        pair.alpha.kill()
        pair.sim.run_for(10.0)
        assert [connection.losses for connection in pair.accepted] == (
            [] if moment < 1 else [[None]]
        )
        pair.alpha.start()
        pair.sim.run_for(5.0)


async def resolve(name: str) -> list[str]:
    entries = await asyncio.get_running_loop().getaddrinfo(name, 1, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in entries]


def test_each_address_of_a_name_is_tried_and_names_change(pair: Pair) -> None:
    pair.sim.add("gamma", pair._serve)
    pair.network.set_name("service", ["gamma", "beta"])
    near = pair.sim.run(pair.dial("service"), pair.alpha)
    assert near.transport.get_extra_info("peername") == (pair.beta.host, PORT)
    pair.network.set_name("service", ["gamma", "gamma"])
    with pytest.raises(OSError, match="Multiple"):
        pair.sim.run(pair.dial("service"), pair.alpha)

    def ask(name: str) -> list[str]:
        return pair.sim.run(resolve(name), pair.alpha)

    assert (ask("alpha"), ask("BETA"), ask("localhost")) == (
        ["10.0.0.1"],
        ["10.0.0.2"],
        ["127.0.0.1"],
    )
    pair.network.set_name("service", ["alpha", "beta", "192.168.0.9"])
    assert ask("service") == ["10.0.0.1", "10.0.0.2", "192.168.0.9"]
    pair.network.set_name("beta", "alpha")
    assert ask("beta") == ["10.0.0.1"]
    pair.network.remove_name("beta")
    with pytest.raises(socket.gaierror):
        ask("beta")
    with pytest.raises(socket.gaierror):
        pair.sim.run(pair.dial("nobody"), pair.alpha)


def test_loopback_is_the_local_host(pair: Pair) -> None:
    async def listen() -> tuple[str, int]:
        server = await asyncio.get_running_loop().create_server(End, "localhost", 0)
        name: tuple[str, int] = server.sockets[0].getsockname()
        return name

    async def dial(host: str, port: int) -> None:
        await asyncio.get_running_loop().create_connection(End, host, port)

    host, port = pair.sim.run(listen(), pair.beta)
    assert host == "127.0.0.1"
    pair.sim.run(dial("127.0.0.1", port), pair.beta)
    for host_name in ("127.0.0.1", "beta"):
        with pytest.raises(ConnectionRefusedError):
            pair.sim.run(dial(host_name, port), pair.alpha)


def test_wildcard_is_reached_at_every_address(pair: Pair) -> None:
    async def listen(port: int) -> None:
        await asyncio.get_running_loop().create_server(End, None, port)

    async def dial(host: str) -> None:
        await asyncio.get_running_loop().create_connection(End, host, 8000)

    pair.sim.run(listen(8000), pair.beta)
    for name in ("127.0.0.1", "localhost", "beta", "10.0.0.2"):
        pair.sim.run(dial(name), pair.beta)
    pair.sim.run(dial("beta"), pair.alpha)
    with pytest.raises(OSError, match="in use"):
        pair.sim.run(listen(PORT), pair.beta)


def test_only_local_addresses_can_be_bound_and_every_host_has_one(pair: Pair) -> None:
    async def listen() -> None:
        await asyncio.get_running_loop().create_server(End, "10.0.0.2", 0)

    with pytest.raises(OSError) as failure:
        pair.sim.run(listen(), pair.alpha)
    assert failure.value.errno == errno.EADDRNOTAVAIL

    hosts = [pair.network.add_host(f"host-{number}") for number in range(600)]
    assert len({host.address for host in hosts}) == 600
    for host in hosts:
        socket.inet_aton(host.address)


def test_log_has_connections_and_faults(pair: Pair) -> None:
    pair.connect()
    pair.network.partition({"alpha"}, {"beta"}, one_way=True)
    pair.network.heal()
    pair.network.reset_connections("alpha", "beta")
    pair.sim.run_for(1.0)
    log = str(pair.sim.log)
    for text in (
        "alpha     connected   to beta at 10.0.0.2:7000",
        "network   partition   alpha to beta",
        "network   healed",
        "network   reset       alpha and beta: 1 connections",
        "alpha     lost        the connection with 10.0.0.2:7000: Connection reset by peer",
    ):
        assert text in log
