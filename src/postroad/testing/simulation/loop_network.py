"""What a simulated loop does not do: each call says what to do instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

from postroad.core.errors import UsageError
from postroad.testing.simulation.network import MemoryNetwork


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


ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)


class SimLoopNetwork(UnsupportedCalls):
    """Everything of an event loop that opens or finds something at the network."""

    network: MemoryNetwork

    async def getaddrinfo(
        self, host: bytes | str | None, port: bytes | str | int | None, **options: Any
    ) -> list[tuple[Any, ...]]:
        """Ask the memory network's names."""
        return await self.network.resolve(host, port, **options)

    async def getnameinfo(self, sockaddr: tuple[Any, ...], flags: int = 0) -> tuple[str, str]:
        """The name of the host at an address."""
        return await self.network.look_up_name(sockaddr)

    async def create_connection(
        self,
        protocol_factory: Callable[[], ProtocolT],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: object = None,
        sock: object = None,
        local_addr: tuple[str, int] | None = None,
        **options: Any,
    ) -> tuple[asyncio.Transport, ProtocolT]:
        """Connect to a host of the memory network."""
        check_endpoint_options(ssl=ssl, sock=sock)
        return await self.network.connect(protocol_factory, host, port, local_addr)

    async def create_server(  # type: ignore[override]  # Refuses some options.
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | list[str] | None = None,
        port: int | None = None,
        *,
        ssl: object = None,
        sock: object = None,
        start_serving: bool = True,
        **options: Any,
    ) -> asyncio.Server:
        """Listen at a host of the memory network, which must be the caller's own."""
        check_endpoint_options(ssl=ssl, sock=sock)
        server = self.network.listen(protocol_factory, host, port or 0)
        if start_serving:
            await server.start_serving()
        return cast("asyncio.Server", server)

    async def create_datagram_endpoint(  # type: ignore[override]  # Refuses some options.
        self,
        protocol_factory: Callable[[], ProtocolT],
        local_addr: tuple[str, int] | None = None,
        remote_addr: tuple[str, int] | None = None,
        *,
        sock: object = None,
        **options: Any,
    ) -> tuple[asyncio.DatagramTransport, ProtocolT]:
        """Open a datagram socket at the caller's host."""
        check_endpoint_options(sock=sock)
        if local_addr is None and remote_addr is None and not options.get("family"):
            raise ValueError("unexpected address family")
        return await self.network.open_datagrams(protocol_factory, local_addr, remote_addr)
