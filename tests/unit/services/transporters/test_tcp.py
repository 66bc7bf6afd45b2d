"""What users say of nodes that speak TCP to each other."""

from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.core.limits import KIB, MIB
from postroad.services.transporters import make_transporter
from postroad.services.transporters.tcp import TcpTransporter
from postroad.services.transporters.tcp_frames import HEADER_BYTES
from postroad.services.transporters.udp_discovery import UdpConfig, read_datagram
from tests.support.cases import each


def test_transporter_is_made_by_name_with_options() -> None:
    for said in ("tcp", "TCP", "tcp://", "tcp://10.0.0.1:4000/a"):
        transporter = make_transporter(said)
        assert isinstance(transporter, TcpTransporter), said
        assert transporter.has_discovery == ("/a" not in said), said
        assert repr(transporter) == "<TcpTransporter not connected>", said
    for host, only in ((None, ""), ("0.0.0.0", ""), ("::", ""), ("10.0.0.1", "10.0.0.1")):
        assert TcpTransporter(host=host).only_host == only, (host, only)
    with pytest.raises(ConfigError, match="host:port/node"):
        make_transporter("tcp://10.0.0.1:4000")
    assert not TcpTransporter(udp_discovery=False).has_discovery
    assert TcpTransporter("10.0.0.1:4000/a", udp_discovery=True).has_discovery
    assert TcpTransporter("10.0.0.1:4000/a", udp_discovery=UdpConfig(port=4000)).has_discovery
    # They read up to 64 KiB at a time, and refuse to hold more than 1 MiB.
    assert TcpTransporter().packet_bytes_max + HEADER_BYTES + 64 * KIB <= MIB


@each(
    {"port": -1},
    {"port": 65_536},
    {"gossip_period_s": 0},
    {"gossip_period_s": float("nan")},
    {"gossip_period_s": float("inf")},
    {"connections_max": 0},
    {"packet_bytes_max": 0},
    {"packet_bytes_max": 2**31},
    {"connect_timeout_s": -1},
)
def test_options_that_are_wrong(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        TcpTransporter(**options)


@each(
    {"group": "10.0.0.1"},
    {"group": "240.0.0.0"},
    {"group": "239.0.0"},
    {"group": "239.0.0.256"},
    {"group": "somewhere"},
    {"port": 0},
    {"port": 65_536},
    {"ttl": -1},
    {"ttl": 256},
    {"period_s": 0},
    {"period_s": float("nan")},
    {"interface": "eth0"},
)
def test_settings_of_multicast_that_are_wrong(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        UdpConfig(**options)


@each(
    (b"ns|node-1|4000", ("ns", "node-1", 4000)),
    (b"|node-1|1", ("", "node-1", 1)),
    ("|kn\u00f6del|65535".encode(), ("", "kn\u00f6del", 65_535)),
)
def test_datagrams(data: bytes, read: tuple[str, str, int]) -> None:
    assert read_datagram(data) == read


@each(
    b"",
    b"||",
    b"ns|node-1",
    b"ns|node-1|4000|more",
    b"ns||4000",
    b"ns|node-1|0",
    b"ns|node-1|65536",
    b"ns|node-1|-1",
    b"ns|node-1|4e3",
    b"ns|node-1|" + b"9" * 5_000,
    "ns|node-1|\u0664".encode(),
    b"ns|a\nb|4000",
    b"ns|" + b"x" * 256 + b"|4000",
    b"\xff\xfe|node-1|4000",
)
def test_datagrams_that_are_none(data: bytes) -> None:
    assert read_datagram(data) is None
