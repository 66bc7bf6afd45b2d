"""One connection to an MQTT server. It is made in a thread, and from then on belongs to the loop.

The packets are those of paho-mqtt; who calls it, and when, is decided here.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from postroad.core.errors import MissingExtraError
from postroad.core.limits import MIB

from .server_address import ServerAddress

if TYPE_CHECKING:
    from paho.mqtt.client import Client

UNCONFIRMED_MAX = 100
UNCONFIRMED_BYTES_MAX = 1 * MIB
"""Who publishes waits while more than this is not written, or not confirmed if that is asked."""
_IN_FLIGHT_MAX = 20
_MISC_S = 0.5
# Packets that are taken before others have their turn.
_READ_MAX = 50

Received = Callable[[str, bytes], None]
"""Gets a topic and what came there."""


class _Wrapper:
    """A context for TLS that knows what it wrapped: paho-mqtt forgets it when TLS fails."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._wrapped: ssl.SSLSocket | None = None
        self.check_hostname = context.check_hostname

    def wrap_socket(self, plain: socket.socket, **options: Any) -> ssl.SSLSocket:
        self._wrapped = self._context.wrap_socket(plain, **options)
        return self._wrapped

    def close(self) -> None:
        if self._wrapped is not None:
            self._wrapped.close()


def need_paho() -> None:
    """Refuse to go on without the package."""
    try:
        import paho.mqtt.client  # noqa: F401
    except ImportError:
        raise MissingExtraError("mqtt", "the MQTT transporter") from None


class MqttClient:
    """A connection from `open` until it is lost or closed; there is no second time.

    Args:
        address: where the server is.
        tls: for servers that are spoken to in secret.
        received: is called with everything that comes.
        qos: the certainty of what is subscribed to and published.
        keep_alive_s: a server that was silent for so long is asked, and given up after as long.
    """

    def __init__(
        self,
        address: ServerAddress,
        received: Received,
        *,
        tls: ssl.SSLContext | None = None,
        qos: int = 0,
        keep_alive_s: int = 10,
    ) -> None:
        self._address = address
        self._received = received
        self._qos = qos
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._socket: Any = None
        self._reason = ""
        self._is_abandoned = False
        # Done when the connection ended.
        self._lost: asyncio.Future[None] = self._loop.create_future()
        # An empty text when the server let us in, else why it did not.
        self._entered: asyncio.Future[str] = self._loop.create_future()
        # By the numbers of subscriptions and their ends: what the server said to each topic.
        self._answers: dict[int, asyncio.Future[list[Any]]] = {}
        # By the numbers of packets: how large they are.
        self._unconfirmed: dict[int, int] = {}
        self._unconfirmed_bytes = 0
        self._has_moved = asyncio.Event()
        # How many packets came.
        self._heard = 0
        self._tls = None if tls is None else _Wrapper(tls)
        self._paho = self._make_paho()

    def _make_paho(self) -> Client:
        from paho.mqtt.client import Client, MQTTv311
        from paho.mqtt.enums import CallbackAPIVersion

        paho = Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"postroad-{secrets.token_hex(8)}",
            protocol=MQTTv311,
            reconnect_on_failure=False,
        )
        # What servers take at once unless told otherwise.
        paho.max_inflight_messages_set(_IN_FLIGHT_MAX)
        if self._address.user is not None:
            paho.username_pw_set(self._address.user, self._address.password)
        if self._tls is not None:
            paho.tls_set_context(cast("ssl.SSLContext", self._tls))
        return paho

    # What a user of the connection does.

    async def open(self, timeout_s: float) -> None:
        """Connect and be let in; raises OSError if that is not possible."""
        # It looks up names and makes connections in no other way than by waiting for them.
        connecting = self._loop.run_in_executor(None, self._connect, timeout_s)
        try:
            await asyncio.shield(connecting)
        except asyncio.CancelledError:
            self._is_abandoned = True
            connecting.add_done_callback(self._on_abandoned)
            raise
        self._attach()
        if refusal := await self._entered:
            raise ConnectionError(refusal)

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Hear topics; raises OSError if the server does not let us."""
        result, number = self._paho.subscribe([(topic, self._qos) for topic in topics])
        for topic, code in zip(topics, await self._answer(result, number), strict=True):
            if code.is_failure:
                raise PermissionError(f"the server refuses the topic {topic!r}: {code}")

    async def publish(self, topic: str, data: bytes) -> None:
        """Send something, and wait while too much is on its way; raises OSError if it is lost."""
        sent = self._paho.publish(topic, data, self._qos)
        self._check(sent.rc)
        if not sent.is_published():
            self._unconfirmed[sent.mid] = len(data)
            self._unconfirmed_bytes += len(data)
        await self._until(self._has_room)

    async def flush(self, topics: Sequence[str]) -> None:
        """Hear these topics no more; returns when the server has seen all that was sent before."""
        await self._until(lambda: not self._unconfirmed)
        result, number = self._paho.unsubscribe(list(topics))
        await self._answer(result, number)

    async def watch(self) -> None:
        """Keep the connection alive; raises OSError when it is lost."""
        while not self._lost.done():
            self._paho.loop_misc()
            await asyncio.wait([self._lost], timeout=_MISC_S)
        raise self._loss()

    def close(self) -> None:
        """End the connection at once, politely if the server listens just now."""
        if self._socket is not None:
            self._paho.disconnect()
            self._paho.loop_write()
        self._lose("closed by this side")

    # Waiting.

    async def _answer(self, result: int, number: int | None) -> list[Any]:
        self._check(result)
        assert number is not None
        answer: asyncio.Future[list[Any]] = self._loop.create_future()
        self._answers[number] = answer
        waiting: list[asyncio.Future[Any]] = [answer, self._lost]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise self._loss()
        return answer.result()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._lost.done():
                raise self._loss()
            self._has_moved.clear()
            await self._has_moved.wait()

    def _has_room(self) -> bool:
        return (
            len(self._unconfirmed) <= UNCONFIRMED_MAX
            and self._unconfirmed_bytes <= UNCONFIRMED_BYTES_MAX
        )

    def _check(self, result: int) -> None:
        if result != 0:
            raise self._loss()

    def _loss(self) -> ConnectionError:
        return ConnectionError(self._reason or "the connection is lost")

    # The connection.

    def _connect(self, timeout_s: float) -> None:
        """Runs in a thread; the loop has nothing of the connection yet."""
        self._paho.connect_timeout = timeout_s
        try:
            self._paho.connect(self._address.host, self._address.port, self._keep_alive_s)
        except BaseException:
            if self._tls is not None:
                self._tls.close()
            raise
        if self._is_abandoned:
            self._drop_socket()

    def _on_abandoned(self, connecting: asyncio.Future[None]) -> None:
        # Nobody wants to know any more how it ended.
        if not connecting.cancelled():
            connecting.exception()
        self._drop_socket()

    def _drop_socket(self) -> None:
        found = self._paho.socket()
        if found is not None:
            found.close()

    def _attach(self) -> None:
        self._socket = self._paho.socket()
        if self._socket is None:
            raise self._loss()
        with suppress(OSError):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._paho.on_connect = self._on_connect
        self._paho.on_disconnect = self._on_disconnect
        self._paho.on_message = self._on_message
        self._paho.on_publish = self._on_publish
        self._paho.on_subscribe = self._on_answer
        self._paho.on_unsubscribe = self._on_answer
        self._paho.on_socket_close = self._on_closing
        self._paho.on_socket_register_write = self._on_must_write
        self._paho.on_socket_unregister_write = self._on_all_written
        self._loop.add_reader(self._socket, self._read)
        if self._paho.want_write():
            self._loop.add_writer(self._socket, self._paho.loop_write)

    def _read(self) -> None:
        for _ in range(_READ_MAX):
            heard = self._heard
            self._paho.loop_read()
            if self._heard == heard and not self._has_read_ahead():
                return
        if self._has_read_ahead():
            self._loop.call_soon(self._read)

    def _has_read_ahead(self) -> bool:
        """Whether TLS has read something already, of which the loop knows nothing."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def _lose(self, reason: str) -> None:
        if self._lost.done():
            return
        self._reason = reason
        self._lost.set_result(None)
        if self._socket is not None:
            self._detach()
        if not self._entered.done():
            self._entered.set_result(reason)
        self._has_moved.set()

    def _detach(self) -> None:
        left, self._socket = self._socket, None
        self._loop.remove_writer(left)
        self._loop.remove_reader(left)
        left.close()

    # What paho-mqtt tells.

    def _on_connect(
        self, _client: object, _data: object, _flags: object, code: Any, _properties: object
    ) -> None:
        if not self._entered.done():
            refusal = f"the server does not let us in: {code}" if code.is_failure else ""
            self._entered.set_result(refusal)

    def _on_disconnect(
        self, _client: object, _data: object, _flags: object, code: Any, _properties: object
    ) -> None:
        self._lose(f"the connection is lost: {code}")

    def _on_message(self, _client: object, _data: object, message: Any) -> None:
        self._heard += 1
        if self._lost.done():
            return
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""
        self._received(topic, bytes(message.payload))

    def _on_publish(
        self, _client: object, _data: object, number: int, _code: object, _properties: object
    ) -> None:
        size = self._unconfirmed.pop(number, None)
        if size is not None:
            self._unconfirmed_bytes -= size
            self._has_moved.set()

    def _on_answer(
        self, _client: object, _data: object, number: int, codes: list[Any], _properties: object
    ) -> None:
        answer = self._answers.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_result(codes)

    def _on_must_write(self, _client: object, _data: object, _socket: object) -> None:
        if self._socket is not None:
            self._loop.add_writer(self._socket, self._paho.loop_write)

    def _on_all_written(self, _client: object, _data: object, _socket: object) -> None:
        if self._socket is not None:
            self._loop.remove_writer(self._socket)

    def _on_closing(self, _client: object, _data: object, _socket: object) -> None:
        # Before it is closed: the next socket may get its number, and the loop must forget this.
        if self._socket is not None:
            self._detach()
