"""Redis streams.

Slices are ranges of ids, and read as such. A group of consumers is told what is done, so that other
tools see how far the job is. But what was delivered to the job is known by the job alone: the group
may have heard more or less of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlsplit

import msgspec

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors.connector import Position, RawRecords, Split
from postroad.pipeline.connectors.options import (
    ClientTlsFiles,
    accept_old_names,
    check_flag,
    check_name,
    check_url,
)
from postroad.pipeline.connectors.redis.client import (
    Fields,
    RedisStreamEndpoint,
    StreamEntry,
    mapped_errors,
    need_redis,
    parse_entries,
    show_id,
)
from postroad.pipeline.connectors.redis.splits import RedisSplitPlanner
from postroad.pipeline.connectors.stream import SPLIT_BYTES, SPLIT_SEGMENTS, IdlePool, StreamInput

logger = logging.getLogger("postroad.pipeline")

_SCHEMES = ("redis", "rediss", "unix")
# Begins neither JSON nor MsgPack.
_NO_SEGMENT = b"\xc1"

_encoders: dict[str, Callable[[object], bytes]] = {
    "json": msgspec.json.encode,
    "msgpack": msgspec.msgpack.encode,
}


class RedisStreamInput(StreamInput[RedisSplitPlanner]):
    """Gives the entries of a stream.

    It has no end, unless `bounded` is set. A segment is what is in one field of an entry. An
    entry that has no such field is a segment itself, with a text for each of its fields.

    What tells segments apart is their id. So a stream must not be deleted and begun again with ids
    of its past; those that Redis makes by itself, from the time, are safe.

    Args:
        url: of the server, such as `redis://user:password@host:6379/0`; `rediss://` is with TLS.
        stream: its key; it must be there.
        group: name of the group of consumers, made if there is none. Jobs that read the same stream
            need different ones.
        field: the field with the segment.
        codec: how it is encoded, `json` or `msgpack`.
        bounded: whether to end with what is there when the job begins.
        ignore_trimmed: whether to go on, with an error in the log, when entries were trimmed or
            deleted before they were read; otherwise the job fails.
        user: of the server, if not in the URL.
        password: likewise.
        tls_ca: file with certificates of those who may vouch for the server.
        tls_cert: file with our own certificate.
        tls_key: file with its key.
        split_segments: how many segments a slice has at most.
        split_bytes: about how long a slice is at most.

    Raises:
        ConfigError: one of them is wrong.
    """

    @accept_old_names(
        slice_segments="split_segments",
        slice_bytes="split_bytes",
        until_empty="bounded",
        skip_lost="ignore_trimmed",
    )
    def __init__(
        self,
        url: str,
        stream: str,
        group: str = "postroad",
        field: str = "data",
        codec: str = "json",
        bounded: bool = False,
        ignore_trimmed: bool = False,
        user: str | None = None,
        password: str | None = None,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        split_segments: int = SPLIT_SEGMENTS,
        split_bytes: int = SPLIT_BYTES,
    ) -> None:
        super().__init__(codec, bounded, split_segments, split_bytes)
        check_url("url", url, _SCHEMES)
        tls = ClientTlsFiles(tls_ca, tls_cert, tls_key)
        if tls.is_given and urlsplit(url).scheme != "rediss":
            raise ConfigError("tls_ca, tls_cert and tls_key need a url with rediss")
        self._access = RedisStreamEndpoint(url, check_name("stream", stream), user, password, tls)
        self._group = check_name("group", group)
        self._field = check_name("field", field).encode()
        self._ignore_trimmed = check_flag("ignore_trimmed", ignore_trimmed)

    def _make_account(self, unsettled: Sequence[Position]) -> RedisSplitPlanner:
        return RedisSplitPlanner(self._access, self._group, unsettled, self._ignore_trimmed)

    def _close_reader(self) -> None:
        _readers.close(self._access)

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        await self._account.fetch_ahead(after, segments)
        size = min(self._split_segments, self.split_segments_max)
        return self._account.plan_splits(segments, size, self._split_bytes)

    def read(self, place: Position) -> Iterator[RawRecords]:
        with _readers.borrow(self._access, lambda: _RedisSplitReader(self._access)) as reader:
            entries = reader.read(place)
        lost = place["count"] - len(entries)
        if lost > 0:
            self._on_lost(place, lost)
        ids = [show_id(it.id) for it in entries]
        yield RawRecords(self._access.stream, ids, [self._to_raw(it.fields) for it in entries])

    def _on_lost(self, place: Position, lost: int) -> None:
        text = (
            f"{lost} of {place['count']} entries from {place['first']} to {place['last']} are lost:"
            f" they were trimmed or deleted before they were read; {self._access.shown}"
        )
        if not self._ignore_trimmed:
            raise FileNotFoundError(text)
        logger.error("%s", text)

    def _to_raw(self, fields: Fields) -> bytes:
        if (found := fields.get(self._field)) is not None:
            return found
        try:
            texts = {name.decode(): value.decode() for name, value in fields.items()}
        except UnicodeDecodeError:
            return _NO_SEGMENT + b" ".join(b"%b=%b" % it for it in fields.items())
        return _encoders[self._codec](texts)


class _RedisSplitReader:
    """Reads slices, with connections of its own."""

    def __init__(self, access: RedisStreamEndpoint) -> None:
        need_redis()
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._access = access
        # Once, for connections that were kept and are broken.
        retry = Retry(NoBackoff(), 1)
        self._client = Redis.from_url(access.url, **access.options(), retry=retry)

    def read(self, place: Position) -> list[StreamEntry]:
        with mapped_errors(self._access):
            return parse_entries(
                self._client.xrange(self._access.stream, place["first"], place["last"])
            )

    def close(self) -> None:
        self._client.close()


_readers: IdlePool[_RedisSplitReader] = IdlePool()
