"""What the connector for Redis streams asks of a server. Every question has its time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec

from postroad.core.errors import ConfigError, MissingExtraError
from postroad.pipeline.connectors.options import ClientTlsFiles

CONNECT_S = 5.0
REQUEST_S = 10.0

EntryId: TypeAlias = tuple[int, int]
"""Milliseconds since 1970, and a number within them."""
START: EntryId = (0, 0)
_PART_MAX = (1 << 64) - 1

Fields: TypeAlias = Mapping[bytes, bytes]


class StreamEntry(NamedTuple):
    """An entry of a stream."""

    id: EntryId
    fields: Fields

    @property
    def size(self) -> int:
        """How long its fields are."""
        return sum(len(name) + len(value) for name, value in self.fields.items())


def parse_id(text: bytes | str) -> EntryId:
    """An id as Redis writes it."""
    time, _, number = (text.decode() if isinstance(text, bytes) else text).partition("-")
    return int(time), int(number or 0)


def show_id(id: EntryId) -> str:
    """An id as Redis reads it."""
    return f"{id[0]}-{id[1]}"


def id_after(id: EntryId) -> EntryId:
    """The id that comes next, whether something has it or not."""
    return (id[0], id[1] + 1) if id[1] < _PART_MAX else (id[0] + 1, 0)


def parse_entries(entries: Any) -> list[StreamEntry]:
    """Entries as redis-py gives them. Those that were deleted while they were pending are gone."""
    return [StreamEntry(parse_id(id), fields) for id, fields in entries or () if fields]


class RedisStreamEndpoint(msgspec.Struct, frozen=True):
    """A stream and how to get at it."""

    url: str
    stream: str
    user: str | None = None
    password: str | None = None
    tls: ClientTlsFiles = ClientTlsFiles()

    @property
    def shown(self) -> str:
        """For people, without secrets."""
        parts = urlsplit(self.url)
        return f"stream {self.stream!r} of Redis at {parts.netloc.rpartition('@')[2] or parts.path}"

    def options(self) -> dict[str, Any]:
        """What both kinds of clients are made with."""
        options: dict[str, Any] = {
            "socket_timeout": REQUEST_S,
            "socket_connect_timeout": CONNECT_S,
            "protocol": 2,
            "client_name": "postroad",
        }
        options |= {"username": self.user} if self.user is not None else {}
        options |= {"password": self.password} if self.password is not None else {}
        if self.tls.is_given:
            # Only to see now whether the files are good.
            self.tls.context()
            files = {
                "ssl_ca_certs": self.tls.ca,
                "ssl_certfile": self.tls.cert,
                "ssl_keyfile": self.tls.key,
            }
            options |= {key: value for key, value in files.items() if value is not None}
        if urlsplit(self.url).scheme == "rediss":
            options["ssl_check_hostname"] = True
        return options


def need_redis() -> None:
    """Refuse to go on without the package."""
    try:
        import redis  # noqa: F401
    except ImportError:
        raise MissingExtraError("redis", "reading Redis streams") from None


class ConsumerGroupNotFoundError(OSError):
    """The group of consumers is not there, or the stream itself."""


@contextmanager
def mapped_errors(access: RedisStreamEndpoint) -> Iterator[None]:
    """Have errors of redis-py as everybody knows them."""
    from redis import exceptions

    try:
        yield
    except (exceptions.AuthenticationError, exceptions.NoPermissionError) as error:
        raise PermissionError(f"{access.shown}: {error}") from error
    except (exceptions.TimeoutError, TimeoutError):
        raise TimeoutError(f"no answer in time: {access.shown}") from None
    except (exceptions.ConnectionError, OSError) as error:
        raise ConnectionError(f"{access.shown}: {error}") from error
    except exceptions.ResponseError as error:
        text = str(error)
        if text.startswith("NOGROUP"):
            raise ConsumerGroupNotFoundError(f"{access.shown}: {text}") from error
        if text.startswith("WRONGTYPE"):
            raise ConfigError(f"{access.shown} is not a stream") from error
        if "no such key" in text or "requires the key to exist" in text:
            raise ConfigError(f"there is no {access.shown}") from error
        raise OSError(f"{access.shown}: {text}") from error
    except exceptions.RedisError as error:
        raise OSError(f"{access.shown}: {error}") from error
