"""Sockets of a simulated loop: asyncio's calls, answered by the memory network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

from .network import MemoryNetwork
from .unsupported import UnsupportedCalls, check_endpoint_options

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
