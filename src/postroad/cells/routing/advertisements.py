"""Routing updates between domains: advertisements of queues, topics and tunnels.

An update contains the full advertisement of a domain. It has the incarnation of the domain, which
increases with each start, and a number, which increases with each change. So a receiver recognizes
stale updates in any order of arrival, and a route that is missing in the next update is withdrawn.
Every update is acknowledged with the version that the receiver then has, and a sender regularly
queries whether that is still right.

Updates do not name their sender: it is the domain at the other end of the tunnel.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from itertools import pairwise
from typing import Annotated, TypeAlias

import msgspec

from postroad.cells.addresses import validate_cell_names, validate_domain_names, validate_zone
from postroad.core.errors import ConfigError, MalformedPayloadError
from postroad.core.limits import MIB

NAMES_MAX = 8_192
"""Queues, topics or domains in one advertisement, each."""
ADVERTISEMENT_BYTES_MAX = 2 * MIB
"""Length of all names together, because an advertisement is one message."""
DIGEST_BYTES = 16

Incarnation: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
AdvertisedNames: TypeAlias = Annotated[tuple[str, ...], msgspec.Meta(max_length=NAMES_MAX)]
Digest: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=DIGEST_BYTES)]


class RouteAdvertisement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Queues, topics, tunnels and zone of a domain; names are sorted and unique."""

    queues: AdvertisedNames = ()
    topics: AdvertisedNames = ()
    zone: str | None = None
    domains: AdvertisedNames = ()
    """Domains that it has tunnels to. A core without a tunnel to a domain forwards through another
    core; a message of a satellite is valid only if it came through a domain of this list."""

    def __post_init__(self) -> None:
        for names in (self.queues, self.topics, self.domains):
            if len(names) > NAMES_MAX:
                raise ConfigError(f"advertisement of {len(names)} names has more than {NAMES_MAX}")
            if any(a >= b for a, b in pairwise(names)):
                raise ConfigError("names of an advertisement must be sorted and unique")
        validate_cell_names(self.queues)
        validate_cell_names(self.topics)
        validate_domain_names(self.domains)
        size = len("".join((*self.queues, *self.topics, *self.domains)).encode())
        if size > ADVERTISEMENT_BYTES_MAX:
            raise ConfigError(
                f"advertisement of {size} bytes is larger than {ADVERTISEMENT_BYTES_MAX}"
            )
        if self.zone is not None:
            validate_zone(self.zone)

    @classmethod
    def of(
        cls,
        queues: Iterable[str] = (),
        topics: Iterable[str] = (),
        zone: str | None = None,
        domains: Iterable[str] = (),
    ) -> RouteAdvertisement:
        """Return an advertisement of these names, in any order and with duplicates."""
        return cls(
            tuple(sorted(set(queues))),
            tuple(sorted(set(topics))),
            zone,
            tuple(sorted(set(domains))),
        )

    def __len__(self) -> int:
        """Number of names."""
        return len(self.queues) + len(self.topics) + len(self.domains)

    def digest(self) -> bytes:
        """Return a hash that identifies this advertisement."""
        return blake2b(_encoder.encode(self), digest_size=DIGEST_BYTES).digest()


class AdvertisementUpdate(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Full advertisement of the sender. The reply is an AdvertisementAck."""

    incarnation: Incarnation
    number: Number
    advertisement: RouteAdvertisement


class AdvertisementQuery(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Query for the version that the receiver has. The reply is an AdvertisementAck."""


class AdvertisementAck(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Version that the sender has of the receiver's advertisement; zero and empty if none."""

    incarnation: Incarnation = 0
    number: Number = 0
    digest: Digest = b""
    acknowledges_shutdown: bool = False
    """Whether the shutdown notice was received."""


class ShutdownNotice(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """The sender is about to stop and must lose its default routes; the reply is an ack."""

    incarnation: Incarnation


RoutingUpdate: TypeAlias = (
    AdvertisementUpdate | AdvertisementQuery | AdvertisementAck | ShutdownNotice
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RoutingUpdate)


def encode_routing_update(update: RoutingUpdate) -> bytes:
    return _encoder.encode(update)


def decode_routing_update(data: bytes) -> RoutingUpdate:
    """Decode a routing update; raises MalformedPayloadError if it is malformed."""
    try:
        update: RoutingUpdate = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise MalformedPayloadError(f"malformed routing update: {error}") from None
    return update
