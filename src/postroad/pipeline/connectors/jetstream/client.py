"""JetStream client."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from postroad.core.errors import ConfigError, MissingExtraError
from postroad.pipeline.connectors.options import ClientTlsFiles

logger = logging.getLogger("postroad.pipeline")

_CONNECT_S = 5.0
_REQUEST_S = 10.0
# How long a reader's consumer stays when the reader died.
_INACTIVE_S = 30
_PULL_MESSAGES = 10_000
_MORE_MESSAGES = 100
# Messages are asked for one by one where a stream allows no consumer: so many at once.
_WALKERS = 64
_SECOND_NS = 1_000_000_000

_encode = msgspec.json.Encoder().encode


class _ApiError(msgspec.Struct, frozen=True):
    """Why the interface of JetStream refuses something."""

    code: int
    description: str = ""


def read_answer(data: bytes, server: str) -> dict[str, Any]:
    """Decode an answer of the JetStream API; raises JetStreamError or OSError."""
    try:
        answer = msgspec.json.decode(data, type=dict[str, Any])
        error = msgspec.convert(answer.get("error"), _ApiError | None)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as malformed:
        raise OSError(f"{server} sent no valid answer of the JetStream API: {malformed}") from None
    if error is not None:
        raise JetStreamError(error.code, f"{server}: {error.description}")
    return answer


class JetStreamClient:
    """A connection that is opened when it is needed, also again after it was lost."""

    def __init__(self, access: JetStreamEndpoint) -> None:
        self._access = access
        self._connection: Any = None
        self.number = 0
        """Of the connection: each is another."""
        self._pulls: dict[PullRequest, Any] = {}
        self._ending: set[asyncio.Future[None]] = set()

    @property
    def is_connected(self) -> bool:
        """Whether it is open now."""
        return self._connection is not None and bool(self._connection.is_connected)

    async def connect(self) -> Any:
        """The connection; raises OSError if no server accepts it."""
        if not self.is_connected:
            await self.close()
            self._connection = await self._open()
            self.number += 1
        return self._connection

    async def close(self) -> None:
        """Close the connection; it may be used again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await _close(connection)
        await self._on_closed()

    async def _on_closed(self) -> None:
        for pull in self._pulls:
            pull.end(ConnectionResetError(f"connection lost: {self._access.shown}"))
        self._pulls.clear()

    async def _open(self) -> Any:
        errors: list[Exception] = []
        for server in self._access.servers:
            try:
                return await self._open_at(server)
            except OSError as error:
                errors.append(error)
        raise errors[0]

    async def _open_at(self, server: str) -> Any:
        try:
            from nats.aio.client import Client
        except ImportError:
            raise MissingExtraError("jetstream", "reading NATS JetStream") from None
        access, connection = self._access, Client()
        causes: list[Exception] = []

        async def note(error: Exception) -> None:
            logger.debug("NATS: %s", error)
            causes.append(error)

        try:
            with self._mapped_errors(causes):
                async with asyncio.timeout(_CONNECT_S):
                    await connection.connect(
                        [server],
                        name="postroad",
                        # Who lost the connection must first ask how far things are.
                        allow_reconnect=False,
                        max_reconnect_attempts=1,
                        reconnect_time_wait=0,
                        error_cb=note,
                        closed_cb=self._on_closed,
                        user=access.user,
                        password=access.password,
                        token=access.token,
                        tls=access.tls.context() if access.tls.is_given else None,
                    )
        except BaseException:
            await _close(connection)
            raise
        return connection

    @contextmanager
    def _mapped_errors(self, causes: Sequence[Exception] = ()) -> Iterator[None]:
        """Have errors of nats-py as everybody knows them; it tells causes elsewhere."""
        import nats.errors

        try:
            yield
        except nats.errors.NoRespondersError:
            raise ConnectionRefusedError(
                f"JetStream is not enabled: {self._access.shown}"
            ) from None
        except TimeoutError:
            raise TimeoutError(f"no answer in time: {self._access.shown}") from None
        except (OSError, nats.errors.Error) as error:
            text = str(causes[-1] if causes else error)
            kind = PermissionError if "authori" in text.lower() else ConnectionError
            raise kind(f"{self._access.shown}: {text}") from error

    # Questions.

    async def request(self, what: str, body: object = None) -> dict[str, Any]:
        """Call the JetStream API; raises JetStreamError if it refuses, OSError without answer."""
        connection = await self.connect()
        payload = b"" if body is None else _encode(body)
        with self._mapped_errors():
            reply = await connection.request(f"$JS.API.{what}", payload, timeout=_REQUEST_S)
        return read_answer(reply.data, self._access.shown)

    async def stream_info(self) -> StreamInfo:
        """Describe the stream; raises ConfigError if there is none."""
        try:
            answer = await self.request(f"STREAM.INFO.{self._access.stream}")
        except JetStreamError as error:
            if error.status == NOT_FOUND:
                raise ConfigError(f"there is no {self._access.shown}") from error
            raise
        created = datetime.fromisoformat(answer["created"]).timestamp()
        is_readable = answer["config"].get("retention", "limits") == "limits"
        return StreamInfo(round(created * 1_000_000), is_readable, answer["state"]["last_seq"])

    async def publish(self, messages: Iterable[tuple[str, bytes]]) -> None:
        """Send messages, and know that the server has them."""
        connection = await self.connect()
        with self._mapped_errors():
            for subject, data in messages:
                await connection.publish(subject, data)
            await connection.flush(_REQUEST_S)

    async def pull(
        self,
        consumer: str,
        batch: int,
        on_message: Callable[[StreamMessage], None],
        timeout_s: float | None = None,
    ) -> PullRequest:
        """Ask a consumer for messages: those that are there, or the next ones within some time."""
        connection = await self.connect()
        pull = PullRequest(self._access, batch, on_message)
        requested: dict[str, object] = {"batch": batch}
        if timeout_s is None:
            requested["no_wait"] = True
        else:
            requested["expires"] = round(timeout_s * _SECOND_NS)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._access.stream}.{consumer}"
        with self._mapped_errors():
            inbox = connection.new_inbox()
            subscription = await connection.subscribe(
                inbox, cb=pull.take, pending_msgs_limit=-1, pending_bytes_limit=-1
            )
            self._pulls[pull] = subscription
            pull.ended.add_done_callback(lambda _: self._on_pulled(pull))
            await connection.publish(subject, _encode(requested), reply=inbox)
        return pull

    def _on_pulled(self, pull: PullRequest) -> None:
        subscription = self._pulls.pop(pull, None)
        if subscription is not None and self.is_connected:
            ending = asyncio.ensure_future(_unsubscribe(subscription))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    # Reading by sequences.

    async def read_range(
        self,
        info: StreamInfo,
        first: int,
        last: int,
        *,
        limit: int | None = None,
        expected: int | None = None,
        headers_only: bool = False,
    ) -> list[StreamMessage]:
        """The messages of a range that are still there, in order.

        Args:
            limit: so many at most; it may be fewer, but none only if there are none.
            expected: about how many there are, so that not many more are sent.
            headers_only: whether sizes are enough.
        """
        if first > last:
            return []
        if info.is_readable:
            requested = min(limit or _PULL_MESSAGES, expected or _PULL_MESSAGES, last - first + 1)
            return await self._scan_by_consumer(first, last, limit, requested, headers_only)
        if limit is None:
            return await self._walk_all(first, last)
        while first <= last:
            window = min(last, first + limit - 1)
            if messages := await self._walk_all(first, window):
                return messages
            following = await self._get_next(window + 1)
            first = last + 1 if following is None else following.sequence
        return []

    async def _scan_by_consumer(
        self, first: int, last: int, limit: int | None, batch: int, headers_only: bool
    ) -> list[StreamMessage]:
        consumer = await self._create_reader(first, headers_only)
        messages: list[StreamMessage] = []
        try:
            while not messages or (messages[-1].sequence < last and limit is None):
                pull = await self.pull(consumer, batch, messages.append)
                await pull.wait(_REQUEST_S)
                if pull.received < batch:
                    break
                # Few, because most of the time there are no more.
                batch = min(batch, _MORE_MESSAGES)
        finally:
            await self._delete_consumer(consumer)
        return [message for message in messages if message.sequence <= last]

    async def _create_reader(self, first: int, headers_only: bool) -> str:
        stream, subject = self._access.stream, self._access.subject
        config = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": first,
            "ack_policy": "none",
            "inactive_threshold": _INACTIVE_S * _SECOND_NS,
            "mem_storage": True,
            "num_replicas": 1,
            "headers_only": headers_only,
        } | ({} if subject is None else {"filter_subject": subject})
        request = {"stream_name": stream, "config": config}
        answer = await self.request(f"CONSUMER.CREATE.{stream}", request)
        return str(answer["name"])

    async def _delete_consumer(self, consumer: str) -> None:
        if self.is_connected:
            try:
                await self.request(f"CONSUMER.DELETE.{self._access.stream}.{consumer}")
            except OSError as error:
                logger.debug(
                    "a consumer of %s is left until it expires: %s", self._access.shown, error
                )

    async def _walk_all(self, first: int, last: int) -> list[StreamMessage]:
        length = -(-(last - first + 1) // _WALKERS)
        walks = [
            asyncio.ensure_future(self._walk(start, min(start + length - 1, last)))
            for start in range(first, last + 1, length)
        ]
        try:
            return [message for walked in await asyncio.gather(*walks) for message in walked]
        finally:
            for walk in walks:
                walk.cancel()

    async def _walk(self, first: int, last: int) -> Sequence[StreamMessage]:
        messages: list[StreamMessage] = []
        while first <= last:
            message = await self._get_next(first)
            if message is None or message.sequence > last:
                break
            messages.append(message)
            first = message.sequence + 1
        return messages

    async def _get_next(self, sequence: int) -> StreamMessage | None:
        """The first message from a sequence on."""
        requested = {"seq": sequence, "next_by_subj": self._access.subject or ">"}
        try:
            answer = await self.request(f"STREAM.MSG.GET.{self._access.stream}", requested)
        except JetStreamError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        message = answer["message"]
        data = base64.b64decode(message.get("data", ""))
        return StreamMessage(message["seq"], len(data), data)


async def _close(connection: Any) -> None:
    try:
        async with asyncio.timeout(_CONNECT_S):
            await connection.close()
    except Exception as error:
        logger.debug("NATS: closing: %s", error)


async def _unsubscribe(subscription: Any) -> None:
    try:
        await subscription.unsubscribe()
    except Exception as error:
        logger.debug("NATS: %s", error)


NOT_FOUND = 404
_IDLE = 100
_NOT_IN_TIME = 408


class JetStreamEndpoint(msgspec.Struct, frozen=True):
    """A stream and how to get at it."""

    servers: tuple[str, ...]
    stream: str
    subject: str | None = None
    """Which messages are meant; all by default."""
    user: str | None = None
    password: str | None = None
    token: str | None = None
    tls: ClientTlsFiles = ClientTlsFiles()

    @property
    def shown(self) -> str:
        """For people, without secrets."""
        hosts = ", ".join(urlsplit(server).netloc.rpartition("@")[2] for server in self.servers)
        return f"stream {self.stream!r} of NATS at {hosts}"


class JetStreamError(OSError):
    """The server answered that it will not; `status` is as in HTTP."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class StreamInfo(NamedTuple):
    """What a stream is and has."""

    created: int
    """Microseconds since 1970: it tells a stream from later ones of the same name."""
    is_readable: bool
    """Whether it allows consumers besides those that do its work."""
    last: int


class StreamMessage(NamedTuple):
    """A message in a stream."""

    sequence: int
    size: int
    data: bytes


class PullRequest:
    """A request for messages. What it brings is handed on, even if nobody waits for it any more."""

    def __init__(
        self, access: JetStreamEndpoint, batch: int, on_message: Callable[[StreamMessage], None]
    ) -> None:
        self._access = access
        self._batch = batch
        self._on_message = on_message
        self.received = 0
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        """What went wrong, if something did."""

    async def take(self, message: Any) -> None:
        """Be what is called with each answer of the server."""
        headers = message.headers or {}
        if (status := headers.get("Status")) and not message.data:
            self._on_status(int(status), headers.get("Description", ""))
            return
        size = int(headers.get("Nats-Msg-Size", len(message.data)))
        self.received += 1
        self._on_message(StreamMessage(_read_sequence(message.reply), size, message.data))
        # Not already when the server says that no more are there: one that is published at this
        # moment would still be sent to us.
        if self.received == self._batch:
            self.end()

    def _on_status(self, status: int, description: str) -> None:
        if status == _IDLE:
            return
        # Nothing there, or not in time.
        is_harmless = status in (NOT_FOUND, _NOT_IN_TIME)
        self.end(
            None if is_harmless else JetStreamError(status, f"{self._access.shown}: {description}")
        )

    def end(self, error: Exception | None = None) -> None:
        """No more will come."""
        if not self.ended.done():
            self.ended.set_result(error)

    async def wait(self, silence_s: float) -> None:
        """Wait for the last message; raises OSError if it failed, or none came for so long."""
        while not self.ended.done():
            before = self.received
            await asyncio.wait([self.ended], timeout=silence_s)
            if not self.ended.done() and self.received == before:
                raise TimeoutError(f"no answer in time: {self._access.shown}")
        if (error := self.ended.result()) is not None:
            raise error


def _read_sequence(reply: str) -> int:
    """The sequence of a message, from the subject on which it is to be acknowledged."""
    parts = reply.split(".")
    # Nine parts with the sequence as the sixth; or two more before them, and perhaps some behind.
    return int(parts[5] if len(parts) == 9 else parts[7])
