"""Datagrams over UDP, by subject: no reply, no order, no guarantee of delivery."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from postroad.core import (
    Address,
    Lifecycle,
    ThrottledLogger,
    to_address,
    validate_cluster_name,
    validate_node_name,
)
from postroad.core.cluster_secret import ClusterSecret
from postroad.core.errors import (
    ConfigError,
    LocalProtocolError,
    MessageTooLargeError,
    NotRunningError,
    RemoteProtocolError,
    UsageError,
)
from postroad.net.dispatch import RawMessage
from postroad.net.identity import choose_advertised_address, new_nonce
from postroad.wire import Datagram, Seal, encode_preamble
from postroad.wire.datagram import (
    SEAL_BYTES,
    check_body_size,
    decode_body,
    decode_datagram,
    encode_body,
    frame_datagram,
    unframe_datagram,
)

logger = logging.getLogger("postroad.net")

DatagramHandler: TypeAlias = Callable[[RawMessage], object]

# Cached addresses of hosts; clearing them costs one lookup each.
_HOSTS_MAX = 1_024
# Hosts move, so a cached address expires.
_HOST_TTL_S = 30.0
# Datagrams that send_nowait() buffers while their host is looked up; more are dropped.
_LOOKUPS_MAX = 256


class DatagramStatistics(msgspec.Struct):
    """Totals since the start."""

    sent: int = 0
    received: int = 0
    refused: int = 0
    """Datagrams that are malformed or of another cluster."""
    unhandled: int = 0
    """Messages without a handler."""
    unresolved: int = 0
    """Messages dropped because their host is unknown, or too many lookups are pending."""
    handlers_failed: int = 0
    errors: int = 0
    """Errors that the system reported, such as an unreachable port."""


class DatagramService(Lifecycle):
    """Sends and receives datagrams; a subject may have several handlers.

    async with DatagramService("demo", "alpha") as datagrams:
        datagrams.subscribe("tick", lambda message: print(message.payload))
        await datagrams.send(other.address, "tick", b"1")
    """

    def __init__(
        self,
        cluster: str,
        name: str,
        bind: Address | str = "127.0.0.1:0",
        advertise: Address | str | None = None,
        *,
        secret: ClusterSecret | None = None,
    ) -> None:
        self._preamble = encode_preamble(validate_cluster_name(cluster))
        self.name = validate_node_name(name)
        self._bind = to_address(bind)
        self._advertise = None if advertise is None else to_address(advertise)
        self._handlers: dict[str, list[DatagramHandler]] = {}
        self._hosts: dict[Address, tuple[tuple[str, int], float]] = {}
        # Buffered datagrams whose host is being looked up.
        self._lookups: dict[asyncio.Task[object], None] = {}
        self._log = ThrottledLogger(logger, interval_s=5.0)
        # Authenticates datagrams in a cluster with a secret.
        self._seal = None if secret is None else Seal(secret, new_nonce())
        self._statistics = DatagramStatistics()
        # Set while running.
        self._transport: asyncio.DatagramTransport | None = None
        # Set during start(); the flag says that stop() was called meanwhile.
        self._starting: asyncio.Future[None] | None = None
        self._is_stop_wanted = False
        self._receiver: _DatagramProtocol | None = None
        self._address: Address | None = None

    async def start(self) -> None:
        """Open the socket."""
        if self._transport is not None or self._starting is not None:
            raise UsageError(f"datagram service {self.name!r} is started already")
        loop = asyncio.get_running_loop()
        self._starting = starting = loop.create_future()
        self._is_stop_wanted = False
        try:
            self._transport, self._receiver = await loop.create_datagram_endpoint(
                lambda: _DatagramProtocol(self), local_addr=(self._bind.host, self._bind.port)
            )
        except OSError as error:
            raise ConfigError(f"cannot open a datagram socket at {self._bind}: {error}") from error
        finally:
            self._starting = None
            starting.set_result(None)
        if self._is_stop_wanted:
            await self.stop()
            raise NotRunningError(f"datagram service {self.name!r} was stopped during its start")
        bound = Address(self._bind.host, int(self._transport.get_extra_info("sockname")[1]))
        self._address = choose_advertised_address(self._advertise, bound)

    async def stop(self) -> None:
        """Close the socket; send() raises from then on."""
        if self._starting is not None:
            self._is_stop_wanted = True
            await asyncio.shield(self._starting)
        if self._transport is not None:
            self._transport.close()
            self._transport = None
            for lookup in list(self._lookups):
                lookup.cancel()
        if self._receiver is not None:
            await self._receiver.closed.wait()

    @property
    def address(self) -> Address:
        """The address at which others reach this node."""
        if self._address is None:
            raise UsageError(f"datagram service {self.name!r} has no address yet; start() it first")
        return self._address

    def subscribe(self, subject: str, handler: DatagramHandler) -> None:
        """Call `handler(message)` for each datagram of the subject."""
        self._handlers.setdefault(subject, []).append(handler)

    def unsubscribe(self, subject: str, handler: DatagramHandler | None = None) -> None:
        """Remove one handler of the subject, or all."""
        remaining = [
            other for other in self._handlers.get(subject, ()) if handler and other != handler
        ]
        if remaining:
            self._handlers[subject] = remaining
        else:
            self._handlers.pop(subject, None)

    async def send(self, address: Address | str, subject: str, payload: bytes = b"") -> bool:
        """Send one datagram; return False if the host is unknown. True does not mean delivery."""
        target = to_address(address)
        body = self._encode(subject, payload)
        resolved = await self._resolve(target)
        if resolved is None:
            self._statistics.unresolved += 1
            self._warn("host", "datagram to %s dropped: its host is unknown", target)
            return False
        if self._transport is None:
            raise NotRunningError(f"datagram service {self.name!r} is not running")
        self._send(target, body, resolved)
        return True

    def send_nowait(self, address: Address | str, subject: str, payload: bytes = b"") -> None:
        """Send one datagram without waiting; a lookup of its host runs in the background."""
        target = to_address(address)
        resolved = self._cached_host(target)
        if resolved is not None and self._transport is not None:
            self._send(target, self._encode(subject, payload), resolved)
        elif len(self._lookups) < _LOOKUPS_MAX:
            self._encode(subject, payload)
            lookup = asyncio.ensure_future(self._send_later(target, subject, payload))
            self._lookups[lookup] = None
            lookup.add_done_callback(self._lookups.pop)
        else:
            self._statistics.unresolved += 1

    async def _send_later(self, target: Address, subject: str, payload: bytes) -> None:
        try:
            await self.send(target, subject, payload)
        except NotRunningError:
            self._statistics.unresolved += 1

    def statistics(self) -> DatagramStatistics:
        """Return a copy of the counters."""
        return msgspec.structs.replace(self._statistics)

    def _send(self, target: Address, body: bytes, resolved: tuple[str, int]) -> None:
        assert self._transport is not None
        if self._seal is not None:
            body = self._seal.seal(target, body, asyncio.get_running_loop().time())
        self._transport.sendto(frame_datagram(self._preamble, body), resolved)
        self._statistics.sent += 1

    def _encode(self, subject: str, payload: bytes) -> bytes:
        """Return the body of a datagram, if one datagram can carry it."""
        if self._address is None or self._transport is None:
            raise NotRunningError(f"datagram service {self.name!r} is not running")
        host, port = self._address
        try:
            body = encode_body(Datagram(self.name, host, port, subject, payload))
            check_body_size(len(body) + (0 if self._seal is None else SEAL_BYTES))
            return body
        except UnicodeEncodeError:
            raise UsageError(f"subject {subject!r} cannot be encoded as UTF-8") from None
        except LocalProtocolError as error:
            raise MessageTooLargeError(str(error), subject=subject) from None

    async def _resolve(self, target: Address) -> tuple[str, int] | None:
        cached = self._cached_host(target)
        if cached is not None:
            return cached
        loop = asyncio.get_running_loop()
        try:
            addresses = await loop.getaddrinfo(target.host, target.port, family=self._family())
        except (OSError, UnicodeError):
            return None
        resolved: tuple[str, int] = addresses[0][4]  # type: ignore[assignment]
        self._cache_host(target, resolved, loop.time() + _HOST_TTL_S)
        return resolved

    def _cached_host(self, target: Address) -> tuple[str, int] | None:
        """Return the cached or literal address of the target, or None."""
        cached = self._hosts.get(target)
        if cached is not None and asyncio.get_running_loop().time() < cached[1]:
            return cached[0]
        if self._transport is None:
            return None
        try:
            socket.inet_pton(self._family(), target.host)
        except (OSError, ValueError):
            return None
        # A literal address needs no lookup, which could wait behind slow names.
        self._cache_host(target, (target.host, target.port), math.inf)
        return (target.host, target.port)

    def _cache_host(self, target: Address, resolved: tuple[str, int], until: float) -> None:
        if len(self._hosts) >= _HOSTS_MAX:
            self._hosts.clear()
        self._hosts[target] = (resolved, until)

    def _family(self) -> int:
        """Return the address family of the socket, by the shape of its name."""
        assert self._transport is not None
        is_v4 = len(self._transport.get_extra_info("sockname")) == 2
        return socket.AF_INET if is_v4 else socket.AF_INET6

    def _on_datagram(self, data: bytes, source: tuple[str, int]) -> None:
        try:
            datagram = self._open(data, source)
        except RemoteProtocolError as error:
            self._statistics.refused += 1
            self._warn("rejected", "datagram from %s rejected: %s", source, error)
            return
        if datagram is None:
            return
        self._statistics.received += 1
        handlers = self._handlers.get(datagram.subject)
        if not handlers:
            self._statistics.unhandled += 1
            return
        message = RawMessage(
            datagram.payload,
            datagram.subject,
            datagram.sender,
            datagram.name,
            source=Address(source[0], source[1]),
        )
        for handler in tuple(handlers):
            self._call(handler, message)

    def _open(self, data: bytes, source: tuple[str, int]) -> Datagram | None:
        """Return the message of a datagram; None if it only serves the seal of a peer."""
        if self._seal is None:
            return decode_datagram(self._preamble, data)
        unsealed = self._seal.open(
            unframe_datagram(self._preamble, data),
            Address(source[0], source[1]),
            asyncio.get_running_loop().time(),
        )
        if unsealed.answer is not None and self._transport is not None:
            self._transport.sendto(frame_datagram(self._preamble, unsealed.answer), source)
        if unsealed.target is not None and self._transport is not None:
            resolved = self._cached_host(unsealed.target)
            if resolved is not None:
                for body in unsealed.held:
                    self._send(unsealed.target, body, resolved)
        return None if unsealed.body is None else decode_body(unsealed.body)

    def _call(self, handler: DatagramHandler, message: RawMessage) -> None:
        try:
            handler(message)
        except (Exception, asyncio.CancelledError) as error:
            # A CancelledError of a handler concerns no task, and would end the event loop.
            self._statistics.handlers_failed += 1
            self._warn("handler", "handler of datagrams %r failed: %r", message.subject, error)

    def _on_error(self, error: Exception) -> None:
        self._statistics.errors += 1
        logger.debug("datagram socket of %s: %s", self.name, error)

    def _warn(self, key: str, text: str, *args: object) -> None:
        self._log.log(key, asyncio.get_running_loop().time(), text, *args)

    def __repr__(self) -> str:
        state = f"at {self._address}" if self._transport is not None else "not running"
        return f"<DatagramService {self.name} {state}>"


class _DatagramProtocol(asyncio.DatagramProtocol):
    """Passes the callbacks of asyncio to the service."""

    def __init__(self, service: DatagramService) -> None:
        self._service = service
        self.closed = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._service._on_datagram(data, addr)

    def error_received(self, exc: Exception) -> None:
        self._service._on_error(exc)
