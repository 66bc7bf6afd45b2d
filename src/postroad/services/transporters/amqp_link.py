"""One connection to an AMQP server, which aiormq opens, keeps and closes.

Packets themselves pass by it: they are written to the connection and taken out of it here, which
is several times as fast. aiormq tells losses in many ways, one of them being to cancel whoever
waits; here all are OSErrors.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from postroad.core.errors import MissingExtraError

from .amqp_frames import ack, content, publish_head
from .amqp_queues import QueueForm
from .amqp_wire import AmqpWire
from .server_address import ServerAddress

if TYPE_CHECKING:
    from aiormq.abc import AbstractChannel
    from aiormq.connection import Connection

_CLOSE_S = 1.0
_FRAME_BYTES = 128 * 1024
_FRAME_BYTES_MAX = 1 << 31
_HEADS_MAX = 4_096

Received = Callable[[bytes, int], None]
"""Gets what came, and the number to confirm it with."""


def need_aiormq() -> None:
    """Refuse to go on without the package."""
    try:
        import aiormq  # noqa: F401
    except ImportError:
        raise MissingExtraError("amqp", "the AMQP transporter") from None


class AmqpLink:
    """A connection from `open` until it is lost or closed; there is no second time.

    Args:
        address: where the server is, with the virtual host as its path.
        tls: for servers that are spoken to in secret.
        prefetch: how many unconfirmed packets of a queue the server gives us.
        heartbeat_s: how often both sides show that they are there.
        client_name: what we are called in the lists of the server.
    """

    def __init__(
        self,
        address: ServerAddress,
        *,
        tls: ssl.SSLContext | None,
        prefetch: int,
        heartbeat_s: int,
        client_name: str,
    ) -> None:
        self._address = address
        self._tls = tls
        self._prefetch = prefetch
        self._heartbeat_s = heartbeat_s
        self._client_name = client_name
        self._wire: AmqpWire | None = None
        self._connection: Connection | None = None
        self._opened_channel: AbstractChannel | None = None
        self._frame_bytes_max = _FRAME_BYTES
        self._heads: dict[tuple[str, str], bytes] = {}
        self._consumers: dict[bytes, Received] = {}
        self._consumer_numbers = count(1)
        # Done when the server takes away a queue.
        self._is_dismissed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def _channel(self) -> AbstractChannel:
        if self._opened_channel is None:
            raise ConnectionError("there is no connection")
        return self._opened_channel

    # Beginning and end.

    async def open(self) -> None:
        """Connect and be let in; raises OSError if that is not possible."""
        from aiormq.connection import Connection

        address = self._address
        wire = self._wire = AmqpWire(self._delivered, self._heartbeat_s)
        await wire.dial(address.host, address.port, self._tls if address.is_encrypted else None)
        self._connection = Connection(self._url(), transport_factory=_dialed(wire))
        try:
            with _mapped_errors():
                await self._connection.connect(
                    client_properties={"connection_name": self._client_name}
                )
        except OSError as error:
            # aiormq does not always tell it.
            raise ConnectionError(wire.last_words or str(error)) from error
        with _mapped_errors():
            agreed = self._connection.connection_tune.frame_max
            channel = await self._connection.channel(publisher_confirms=False)
            channel.on_consumer_cancel_callbacks.add(self._on_dismissed)
        self._opened_channel = channel
        self._frame_bytes_max = agreed or _FRAME_BYTES
        wire.sorter.frame_bytes_max = agreed or _FRAME_BYTES_MAX
        wire.sorter.channel = channel.number
        await self.settle()

    async def watch(self) -> None:
        """Wait for the end of the connection; raises OSError then."""
        assert self._connection is not None
        ends = [self._connection.closing, self._channel.closing, self._is_dismissed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            if end.done() and not end.cancelled() and (error := end.exception()) is not None:
                raise ConnectionError(_text_of(error)) from error
        if self._is_dismissed.done():
            raise ConnectionError("the server took away a queue")
        raise ConnectionError("the server closed the connection")

    async def close(self) -> None:
        """End the connection; the server has seen all that was sent, unless it does not answer."""
        self._consumers.clear()
        if self._connection is not None:
            # It waits for the server in ways that cannot be cancelled.
            closing = asyncio.ensure_future(self._connection.close())
            await asyncio.wait([closing], timeout=_CLOSE_S)
            self._abort()
            await asyncio.wait([closing], timeout=_CLOSE_S)
        self._abort()

    def _abort(self) -> None:
        if self._wire is not None:
            self._wire.abort()

    # Queues.

    async def declare_queue(self, name: str, form: QueueForm) -> None:
        with _mapped_errors():
            await self._channel.queue_declare(
                name,
                durable=True,
                auto_delete=form.is_auto_deleted,
                arguments=dict(form.arguments),
            )

    async def bind_to_all(self, queue: str, exchange: str) -> None:
        """Have a queue get what is sent to all."""
        with _mapped_errors():
            await self._channel.exchange_declare(exchange, exchange_type="fanout", durable=True)
            await self._channel.queue_bind(queue, exchange, "")

    async def consume(self, queue: str, received: Received, *, is_confirmed: bool) -> str:
        """Get what is in a queue, at the latest from `settle` on; says how to cancel that."""
        from pamqp.commands import Basic
        from pamqp.frame import marshal

        consumer = f"consumer-{next(self._consumer_numbers)}"
        self._consumers[consumer.encode()] = received
        consume = Basic.Consume(
            queue=queue, consumer_tag=consumer, no_ack=not is_confirmed, nowait=True
        )
        await self._write(marshal(consume, self._channel.number))
        return consumer

    async def cancel(self, consumer: str) -> None:
        """Get no more of a queue; what came already may still be confirmed."""
        with _mapped_errors():
            await self._channel.basic_cancel(consumer)
        self._consumers.pop(consumer.encode(), None)

    async def settle(self) -> None:
        """Return when the server has done all that it was told."""
        with _mapped_errors():
            await self._channel.basic_qos(prefetch_count=self._prefetch)

    # Packets.

    async def send(self, exchange: str, routing_key: str, data: bytes) -> None:
        """Send a packet, and wait while much waits to be sent."""
        channel = self._channel.number
        to = (exchange, routing_key)
        head = self._heads.get(to)
        if head is None:
            if len(self._heads) >= _HEADS_MAX:
                self._heads.clear()
            head = self._heads[to] = publish_head(channel, exchange, routing_key)
        await self._write(head + content(channel, data, self._frame_bytes_max))

    async def confirm(self, number: int) -> None:
        """Tell the server that a packet was dealt with."""
        await self._write(ack(self._channel.number, number))

    async def _write(self, data: bytes) -> None:
        if self._wire is None:
            raise ConnectionError("there is no connection")
        await self._wire.write(data)

    def _delivered(self, consumer: bytes, number: int, data: bytes) -> None:
        received = self._consumers.get(consumer)
        if received is not None:
            received(data, number)

    async def _on_dismissed(self, _frame: object) -> None:
        if not self._is_dismissed.done():
            self._is_dismissed.set_result(None)

    def _url(self) -> str:
        address = self._address
        user, password = (
            ("guest", "guest") if address.user is None else (address.user, address.password or "")
        )
        scheme = "amqps" if address.is_encrypted else "amqp"
        credentials = f"{quote(user, safe='')}:{quote(password, safe='')}"
        path = quote(address.path or "/", safe="")
        return f"{scheme}://{credentials}@{address}/{path}?heartbeat={self._heartbeat_s}"


def _dialed(wire: AmqpWire) -> Any:
    """A connection that is there already, in the way that aiormq asks for one."""
    from aiormq.connection import TransportFactory

    class Dialed(TransportFactory):
        async def create(self, url: Any, **_: Any) -> Any:
            return wire.streams

    return Dialed()


@contextmanager
def _mapped_errors() -> Iterator[None]:
    """Have losses as everybody knows them."""
    from aiormq.exceptions import AMQPError

    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionError("the connection is lost") from None
    except OSError:
        raise
    except (AMQPError, RuntimeError) as error:
        raise ConnectionError(_text_of(error)) from error


def _text_of(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "the server is silent"
    return str(error) or type(error).__name__
