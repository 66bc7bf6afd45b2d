"""The network part of the simulated event loop, and the calls that cannot be simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

from postroad.core.errors import UsageError
from postroad.testing.simulation.network import MemoryNetwork

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)

_NO_SUBPROCESS = ("a subprocess", "add a node to the SimCluster that does its work")
_NO_PIPE = ("a pipe", "use a connection of the memory network")
_NO_UNIX_SOCKET = ("a Unix socket", "use a host and a port")
_NO_TLS = ("TLS", "run the node without it, and test TLS over real sockets")
_NO_RAW_SOCKET = (
    "a raw socket",
    "use create_connection, create_server or create_datagram_endpoint",
)


def _unsupported(feature: str, remedy: str) -> Any:
    """Return a method that raises a UsageError, which names what to use instead."""

    def method(*args: object, **options: object) -> NoReturn:
        raise UsageError(f"{feature} cannot be simulated: {remedy}")

    return method


def check_endpoint_options(ssl: object = None, sock: object = None) -> None:
    """Raise a UsageError for options of an endpoint that the memory network does not have."""
    if ssl:
        _unsupported(*_NO_TLS)()
    if sock is not None:
        _unsupported(*_NO_RAW_SOCKET)()


class SimLoopNetwork(asyncio.AbstractEventLoop):
    """The methods of an event loop that open connections, servers and other resources."""

    subprocess_exec = _unsupported(*_NO_SUBPROCESS)
    subprocess_shell = _unsupported(*_NO_SUBPROCESS)
    connect_read_pipe = _unsupported(*_NO_PIPE)
    connect_write_pipe = _unsupported(*_NO_PIPE)
    create_unix_connection = _unsupported(*_NO_UNIX_SOCKET)
    create_unix_server = _unsupported(*_NO_UNIX_SOCKET)
    start_tls = _unsupported(*_NO_TLS)
    sendfile = _unsupported("sendfile", "read the file and write() its content")
    connect_accepted_socket = _unsupported(*_NO_RAW_SOCKET)
    sock_recv = _unsupported(*_NO_RAW_SOCKET)
    sock_recv_into = _unsupported(*_NO_RAW_SOCKET)
    sock_recvfrom = _unsupported(*_NO_RAW_SOCKET)
    sock_recvfrom_into = _unsupported(*_NO_RAW_SOCKET)
    sock_sendall = _unsupported(*_NO_RAW_SOCKET)
    sock_sendto = _unsupported(*_NO_RAW_SOCKET)
    sock_sendfile = _unsupported(*_NO_RAW_SOCKET)
    sock_connect = _unsupported(*_NO_RAW_SOCKET)
    sock_accept = _unsupported(*_NO_RAW_SOCKET)
    add_reader = _unsupported(*_NO_RAW_SOCKET)
    remove_reader = _unsupported(*_NO_RAW_SOCKET)
    add_writer = _unsupported(*_NO_RAW_SOCKET)
    remove_writer = _unsupported(*_NO_RAW_SOCKET)

    network: MemoryNetwork

    async def getaddrinfo(
        self, host: bytes | str | None, port: bytes | str | int | None, **options: Any
    ) -> list[tuple[Any, ...]]:
        """Resolve a name with the name service of the memory network."""
        return await self.network.resolve(host, port, **options)

    async def getnameinfo(self, sockaddr: tuple[Any, ...], flags: int = 0) -> tuple[str, str]:
        """Return the name of the host at an address."""
        return await self.network.getnameinfo(sockaddr)

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
        check_endpoint_options(ssl=ssl, sock=sock)
        return await self.network.connect(protocol_factory, host, port, local_addr)

    async def create_server(  # type: ignore[override]  # Rejects some options.
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
        """Listen at the simulated host of the caller."""
        check_endpoint_options(ssl=ssl, sock=sock)
        server = self.network.listen(protocol_factory, host, port or 0)
        if start_serving:
            await server.start_serving()
        return cast("asyncio.Server", server)

    async def create_datagram_endpoint(  # type: ignore[override]  # Rejects some options.
        self,
        protocol_factory: Callable[[], ProtocolT],
        local_addr: tuple[str, int] | None = None,
        remote_addr: tuple[str, int] | None = None,
        *,
        sock: object = None,
        **options: Any,
    ) -> tuple[asyncio.DatagramTransport, ProtocolT]:
        """Open a datagram socket at the simulated host of the caller."""
        check_endpoint_options(sock=sock)
        if local_addr is None and remote_addr is None and not options.get("family"):
            raise ValueError("unexpected address family")
        return await self.network.open_datagrams(protocol_factory, local_addr, remote_addr)
