"""Streams of NATS JetStream.

Slices are ranges of sequences, and read as such. A durable consumer tells what is there, and is
told what is done: other tools see there how far the job is, and streams whose messages go when they
are acknowledged get rid of them. But what was delivered to the job is known by the job alone: the
consumer may have heard more or less of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors.connector import Position, RawRecords, Split
from postroad.pipeline.connectors.jetstream.client import (
    JetStreamClient,
    JetStreamEndpoint,
    StreamMessage,
)
from postroad.pipeline.connectors.jetstream.splits import JetStreamSplitPlanner
from postroad.pipeline.connectors.options import (
    ClientTlsFiles,
    accept_old_names,
    check_name,
    check_url,
)
from postroad.pipeline.connectors.stream import (
    SPLIT_BYTES,
    SPLIT_SEGMENTS,
    EventLoopThread,
    IdlePool,
    StreamInput,
)

_READ_S = 120.0
_SCHEMES = ("nats", "tls", "ws", "wss")
# What means something in subjects or in paths of the server.
_NOT_IN_NAMES = ".*>/\\"


class JetStreamInput(StreamInput[JetStreamSplitPlanner]):
    """Gives the messages of a stream.

    It has no end, unless `bounded` is set. Messages that the stream drops by its own limits
    before they are read are not seen, as with every consumer.

    Args:
        servers: URL of a server, or a list of them, such as `nats://user:password@host:4222`.
        stream: its name; it must be there.
        subject: which messages, such as `orders.>`; all by default.
        durable: name of the consumer, made if there is none. Jobs that read the same stream need
            different ones.
        codec: how segments are encoded, `json` or `msgpack`.
        bounded: whether to end with what is there when the job begins.
        user: of the server, if not in the URL.
        password: likewise.
        token: likewise.
        tls_ca: file with certificates of those who may vouch for the server.
        tls_cert: file with our own certificate.
        tls_key: file with its key.
        split_segments: how many segments a slice has at most.
        split_bytes: about how long a slice is at most.

    Raises:
        ConfigError: one of them is wrong.
    """

    @accept_old_names(
        slice_segments="split_segments", slice_bytes="split_bytes", until_empty="bounded"
    )
    def __init__(
        self,
        servers: str | Sequence[str],
        stream: str,
        subject: str | None = None,
        durable: str = "postroad",
        codec: str = "json",
        bounded: bool = False,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        split_segments: int = SPLIT_SEGMENTS,
        split_bytes: int = SPLIT_BYTES,
    ) -> None:
        super().__init__(codec, bounded, split_segments, split_bytes)
        self._access = JetStreamEndpoint(
            _check_servers(servers),
            check_name("stream", stream, _NOT_IN_NAMES),
            None if subject is None else check_name("subject", subject),
            user,
            password,
            token,
            ClientTlsFiles(tls_ca, tls_cert, tls_key),
        )
        self._durable = check_name("durable", durable, _NOT_IN_NAMES)

    def _make_account(self, unsettled: Sequence[Position]) -> JetStreamSplitPlanner:
        return JetStreamSplitPlanner(self._access, self._durable, unsettled)

    def _close_reader(self) -> None:
        _readers.close(self._access)

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        desk = self._account
        position = await desk.fetch_ahead(after, segments)
        size = min(self._split_segments, self.split_segments_max)
        return desk.plan_splits(position, segments, size, self._split_bytes)

    def read(self, place: Position) -> Iterator[RawRecords]:
        with _readers.borrow(self._access, lambda: _JetStreamSplitReader(self._access)) as reader:
            found = reader.read(place)
        yield RawRecords(
            f"{self._access.stream}@{place['created']}",
            [it.sequence for it in found],
            [it.data for it in found],
        )


def _check_servers(servers: object) -> tuple[str, ...]:
    listed = [servers] if isinstance(servers, str) else servers
    if not isinstance(listed, list | tuple) or not listed:
        raise ConfigError(f"servers is {servers!r}; it must be a URL or a list of them")
    return tuple(check_url("servers", it, _SCHEMES) for it in listed)


class _JetStreamSplitReader:
    """Reads slices, from a thread of its own."""

    def __init__(self, access: JetStreamEndpoint) -> None:
        self._access = access
        self._client = JetStreamClient(access)
        self._thread = EventLoopThread("postroad-jetstream")

    def read(self, place: Position) -> list[StreamMessage]:
        return self._thread.call(self._read(place), _READ_S)

    async def _read(self, place: Position) -> list[StreamMessage]:
        facts = await self._client.stream_info()
        first, last = place["first"], place["last"]
        if facts.created != place["created"]:
            raise FileNotFoundError(
                f"{self._access.shown} is not the one it was: it was deleted and created again,"
                f" and messages {first} to {last} are lost"
            )
        return await self._client.read_range(facts, first, last, expected=place["count"])

    def close(self) -> None:
        try:
            self._thread.call(self._client.close(), _READ_S)
        finally:
            self._thread.close()


_readers: IdlePool[_JetStreamSplitReader] = IdlePool()
