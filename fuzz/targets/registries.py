"""What others wrote down where nodes look for each other, and what they call by multicast."""

from __future__ import annotations

from fuzz.target import Target, prefixes, require
from postroad.cells.core_discovery import zookeeper
from postroad.cells.core_discovery.core_discovery import CoreLocation
from postroad.cluster.discovery import zookeeper as registry
from postroad.core import Address
from postroad.services.transporters.udp_discovery import read_datagram

_LOCATION = CoreLocation("C1", (Address("10.0.0.1", 26_502), Address("fd00::1", 26_502)), "north")


def check_location(data: bytes) -> None:
    """Any bytes are where a core is, or nothing."""
    for part in (*prefixes(data), data):
        location = zookeeper._read_location("C1", part)
        if location is not None:
            again = zookeeper._read_location("C1", zookeeper._encode(location))
            require(again == location, f"{location} does not survive encoding")


def check_address(data: bytes) -> None:
    """Any bytes are an address that can be dialed, or nothing."""
    for part in (*prefixes(data), data):
        address = registry._read_address("n1", part)
        require(address is None or address.port > 0, f"{address} has no port")


def check_datagram(data: bytes) -> None:
    """Any datagram is a call of a node, or nothing."""
    for part in (*prefixes(data), data):
        call = read_datagram(part)
        require(call is None or 1 <= call[2] <= 65_535, f"{call} has no port")


TARGETS = [
    Target("zookeeper-core", check_location, [zookeeper._encode(_LOCATION)]),
    Target("zookeeper-member", check_address, [b'{"address":"10.0.0.1:26502"}']),
    Target("services-multicast", check_datagram, [b"ns|node-1|4000", b"|a|65535"]),
]
