"""What a simulated loop does not do: each call says what to do instead."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

from postroad.core.errors import UsageError


def raise_unsupported(what: str, remedy: str) -> NoReturn:
    """Say that something cannot be simulated."""
    raise UsageError(f"{what} cannot be simulated: {remedy}")


class UnsupportedCalls(asyncio.AbstractEventLoop):
    """Everything of an event loop that reaches outside of the simulation."""

    async def subprocess_exec(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_unsupported("a subprocess", "add a node to the SimCluster that does its work")

    async def subprocess_shell(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_unsupported("a subprocess", "add a node to the SimCluster that does its work")

    async def connect_read_pipe(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_unsupported("a pipe", "use a connection of the memory network")

    async def connect_write_pipe(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_unsupported("a pipe", "use a connection of the memory network")

    async def create_unix_connection(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_unsupported("a Unix socket", "connect to a host and a port")

    async def create_unix_server(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_unsupported("a Unix socket", "listen at a host and a port")

    async def start_tls(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_unsupported("TLS", "run the node without it, and test TLS over real sockets")

    async def sendfile(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_unsupported("sendfile", "read the file and write() what it holds")

    async def connect_accepted_socket(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_raw_socket_unsupported()

    async def sock_recv(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_raw_socket_unsupported()

    async def sock_recv_into(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_raw_socket_unsupported()

    async def sock_recvfrom(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_raw_socket_unsupported()

    async def sock_recvfrom_into(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_raw_socket_unsupported()

    async def sock_sendall(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_raw_socket_unsupported()

    async def sock_sendto(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_raw_socket_unsupported()

    async def sock_sendfile(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_raw_socket_unsupported()

    async def sock_connect(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_raw_socket_unsupported()

    async def sock_accept(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_raw_socket_unsupported()

    def add_reader(self, *args: Any, **options: Any) -> NoReturn:  # type: ignore[override]  # Any.
        """Refused."""
        raise_raw_socket_unsupported()

    def remove_reader(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_raw_socket_unsupported()

    def add_writer(self, *args: Any, **options: Any) -> NoReturn:  # type: ignore[override]  # Any.
        """Refused."""
        raise_raw_socket_unsupported()

    def remove_writer(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        raise_raw_socket_unsupported()


def raise_raw_socket_unsupported() -> NoReturn:
    """Say that descriptors of the operating system are out of reach."""
    raise_unsupported(
        "a raw socket", "use create_connection, create_server or create_datagram_endpoint"
    )


def check_endpoint_options(ssl: object = None, sock: object = None) -> None:
    """Refuse what the arguments of an endpoint ask for and the memory network has not."""
    if ssl:
        raise_unsupported("TLS", "run the node without it, and test TLS over real sockets")
    if sock is not None:
        raise_raw_socket_unsupported()
