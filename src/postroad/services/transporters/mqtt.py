"""Packets through an MQTT server: each topic of ours is one there."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable

from postroad.core.errors import ConfigError
from postroad.core.log_throttle import ThrottledLogger
from postroad.services.kinds import Kind
from postroad.services.topics import SEPARATOR, Topics

from .mqtt_client import MqttClient, need_paho
from .reconnecting import CONNECT_TIMEOUT_S
from .server_address import Scheme, parse_address
from .sessions import SessionTransporter
from .transporter import Listener

logger = logging.getLogger("postroad.services.transporters")

URL = "mqtt://127.0.0.1:1883"
KEEP_ALIVE_S = 10
_KEEP_ALIVE_MAX_S = 65_535
_SCHEMES = {"mqtt": Scheme(1883, False), "mqtts": Scheme(8883, True)}
_WILDCARDS = ("+", "#")
_LOG_INTERVAL_S = 10.0


class MqttTransporter(SessionTransporter):
    """Carries packets through an MQTT server.

    Args:
        url: the server, as `mqtt://user:password@host:1883`, or `mqtts://` for TLS.
        user: instead of that in the URL, with `password`.
        qos: 0 to send each packet once and hope, 1 to send it until it is confirmed, 2 to make
            sure that it does not come twice. What is under way when the connection is lost is
            lost with each of them, as a session does not outlive its connection.
        topic_separator: what is between the parts of a topic; all nodes must have the same.
        tls: whom to trust, and our own certificate; by default as the machine has it.
        packet_bytes_max: the largest packet that the server takes, if it has such a limit; one
            that is larger would cost the connection.
        connect_timeout_s: how long connecting may take.
        keep_alive_s: a server that was silent for so long is asked whether it is still there, and
            given up if it does not answer for as long.

    Raises:
        ConfigError: the URL or an option is wrong.
        MissingExtraError: paho-mqtt is not installed.
    """

    name = "mqtt"

    def __init__(
        self,
        url: str = URL,
        *,
        user: str | None = None,
        password: str | None = None,
        qos: int = 0,
        topic_separator: str = SEPARATOR,
        tls: ssl.SSLContext | None = None,
        packet_bytes_max: int | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        keep_alive_s: int = KEEP_ALIVE_S,
    ) -> None:
        super().__init__(connect_timeout_s=connect_timeout_s)
        self._address = parse_address(
            url, _SCHEMES, user=user, password=password, has_tls=tls is not None
        )
        if self._address.path:
            raise ConfigError("the URL of an MQTT server ends with its port")
        if qos not in (0, 1, 2):
            raise ConfigError(f"qos is {qos!r}; it must be 0, 1 or 2")
        if not 1 <= keep_alive_s <= _KEEP_ALIVE_MAX_S:
            raise ConfigError(
                f"keep_alive_s is {keep_alive_s!r}; it must be from 1 to {_KEEP_ALIVE_MAX_S}"
            )
        self._qos = qos
        self._separator = _check_topic(topic_separator)
        self._tls = tls
        self._packet_bytes_max = packet_bytes_max
        self._keep_alive_s = keep_alive_s
        need_paho()
        self._client: MqttClient | None = None
        # What this node hears; each kind is known by the topic.
        self._kinds: dict[str, Kind] = {}
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)

    def bind(self, topics: Topics, listener: Listener) -> None:
        own = Topics(topics.node_id, topics.namespace, separator=self._separator)
        super().bind(own, listener)
        heard = own.subscriptions(has_acks=True)
        self._kinds = {_check_topic(topic): own.parse(topic).kind for topic in heard}

    @property
    def packet_bytes_max(self) -> int | None:
        return self._packet_bytes_max

    def publish(self, kind: Kind, node_id: str | None, data: bytes) -> None:
        self._put(_check_topic(self.topics.name_of(kind, node_id)), data)

    # A session.

    async def _session(self, ready: Callable[[], None]) -> None:
        client = MqttClient(
            self._address,
            self._on_packet,
            tls=await self._tls_context(),
            qos=self._qos,
            keep_alive_s=self._keep_alive_s,
        )
        try:
            await client.open(self._connect_timeout_s)
            await client.subscribe(list(self._kinds))
            self._client = client
            ready()
            await client.watch()
        finally:
            self._client = None
            client.close()

    async def _send(self, to: object, data: bytes) -> None:
        assert isinstance(to, str)
        assert self._client is not None
        await self._client.publish(to, data)

    async def _flush(self) -> None:
        await super()._flush()
        if self._client is not None:
            await self._client.flush(list(self._kinds))

    async def _tls_context(self) -> ssl.SSLContext | None:
        if self._tls is None and self._address.is_encrypted:
            # Reading all that a machine trusts takes a while.
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        return self._tls

    def _on_packet(self, topic: str, data: bytes) -> None:
        kind = self._kinds.get(topic)
        if kind is None:
            now = asyncio.get_running_loop().time()
            self._log.log("topic", now, "mqtt: a packet of an unknown topic %r", topic[:80])
            return
        self.listener.received(kind, data)


def _check_topic(topic: str) -> str:
    """Refuse what would be many topics."""
    if any(it in topic for it in _WILDCARDS):
        raise ConfigError(f"topic {topic!r:.200} would be many topics for MQTT")
    return topic
