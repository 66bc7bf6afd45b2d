"""An address belongs to one node, from the moment it has taken it."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from postroad.admin.listening import AddressTaken, take_address
from postroad.core import Address


def test_address_that_somebody_has_taken_is_refused_before_it_is_served() -> None:
    with take_address(Address("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        for host in ("127.0.0.1", "localhost", "0.0.0.0"):
            with pytest.raises(AddressTaken, match="port 0 is any that is free"):
                take_address(Address(host, port))
    # And can be had at once when it is free again, also by one that was connected.
    with take_address(Address("127.0.0.1", port)):
        pass


def test_address_that_many_take_at_once_is_given_to_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    def take(_: int) -> socket.socket | None:
        try:
            return take_address(Address("127.0.0.1", port))
        except AddressTaken:
            return None

    with ThreadPoolExecutor(8) as threads:
        taken = [it for it in threads.map(take, range(64)) if it is not None]
    for it in taken:
        it.close()
    assert len(taken) == 1
