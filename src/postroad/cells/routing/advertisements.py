"""What domains tell each other of the queues and topics their own cells offer, and of tunnels.

A snapshot is everything a domain offers at one time. It has the domain's incarnation, which is
higher for each later start, and a number, which is higher for each later snapshot. So a receiver
can tell what is old, whatever order things arrive in, and what a domain no longer offers is
withdrawn by the next snapshot. Every message is acknowledged with what the receiver then has, and
now and then a sender asks whether that is still right.

The messages do not name their sender: that is who is at the other end of the tunnel.
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
"""Queues, or topics, that one domain offers."""
ADVERTISEMENT_BYTES_MAX = 2 * MIB
"""Length of all their names together: a snapshot is one message."""
DIGEST_BYTES = 16

Incarnation: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Names: TypeAlias = Annotated[tuple[str, ...], msgspec.Meta(max_length=NAMES_MAX)]
Digest: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=DIGEST_BYTES)]


class RouteAdvertisement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a domain offers: names each once and in order, and its zone."""

    queues: Names = ()
    topics: Names = ()
    zone: str | None = None
    domains: Names = ()
    """Domains that it has tunnels to. Cores without one to them go through another core; what
    others bring as messages of a satellite can be so only if it has a tunnel to them."""

    def __post_init__(self) -> None:
        for names in (self.queues, self.topics, self.domains):
            if len(names) > NAMES_MAX:
                raise ConfigError(f"{len(names)} names are more than {NAMES_MAX}")
            if any(a >= b for a, b in pairwise(names)):
                raise ConfigError("the names of an offer must be in order, each once")
        validate_cell_names(self.queues)
        validate_cell_names(self.topics)
        validate_domain_names(self.domains)
        size = len("".join((*self.queues, *self.topics, *self.domains)).encode())
        if size > ADVERTISEMENT_BYTES_MAX:
            raise ConfigError(f"names of {size} bytes are longer than {ADVERTISEMENT_BYTES_MAX}")
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
        """An offer of these names, in any order and as often as they come."""
        return cls(
            tuple(sorted(set(queues))),
            tuple(sorted(set(topics))),
            zone,
            tuple(sorted(set(domains))),
        )

    def __len__(self) -> int:
        """How many names it has."""
        return len(self.queues) + len(self.topics) + len(self.domains)

    def digest(self) -> bytes:
        """A hash that tells this offer from all others."""
        return blake2b(_encoder.encode(self), digest_size=DIGEST_BYTES).digest()


class AdvertisementUpdate(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """All I offer. The answer is a Have."""

    incarnation: Incarnation
    number: Number
    advertisement: RouteAdvertisement


class AdvertisementQuery(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """What do you have of mine? The answer is a Have."""


class AdvertisementAck(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """What I have of yours; all zero and empty if nothing."""

    incarnation: Incarnation = 0
    number: Number = 0
    digest: Digest = b""
    acknowledges_shutdown: bool = False
    """Whether I have heard that you are about to stop."""


class ShutdownNotice(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """I am about to stop: send me nothing that you can send another way. The answer is a Have."""

    incarnation: Incarnation


RoutingUpdate: TypeAlias = (
    AdvertisementUpdate | AdvertisementQuery | AdvertisementAck | ShutdownNotice
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RoutingUpdate)


def encode_routing_update(update: RoutingUpdate) -> bytes:
    """The bytes to send."""
    return _encoder.encode(update)


def decode_routing_update(data: bytes) -> RoutingUpdate:
    """Read what a peer sent; raises MalformedPayloadError for anything else."""
    try:
        update: RoutingUpdate = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise MalformedPayloadError(f"no update of routes: {error}") from None
    return update
