"""Routing updates between domains: advertisements of queues, topics and tunnels.

An update contains the full advertisement of a domain. It has the incarnation of the domain, which
increases with each start, and a number, which increases with each change. So a receiver recognizes
stale updates in any order of arrival, and a route that is missing in the next update is withdrawn.
Every update is acknowledged with the version that the receiver then has, and a sender regularly
queries whether that is still right.

Updates do not name their sender: it is the domain at the other end of the tunnel.

The consistency check compares which advertisement each core has of each domain: every core should
have the newest one, and of another core what that core advertises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import pairwise
from typing import Annotated, TypeAlias

import msgspec

from postroad.cells.addresses import (
    validate_cell_names,
    validate_domain_name,
    validate_domain_names,
    validate_zone,
)
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


DOMAINS_MAX = 65_536
"""Domains that one core has tunnels to."""


class KnownAdvertisement(msgspec.Struct, frozen=True, array_like=True):
    """Version of the advertisement that a core has of a domain."""

    incarnation: Incarnation = 0
    number: Number = 0
    """0 if it has none yet, or if the advertisement is its own."""
    digest: Digest = b""

    def __str__(self) -> str:
        return f"#{self.number} of incarnation {self.incarnation}" if self.number else "nothing"


_Advertisements: TypeAlias = Annotated[
    dict[str, KnownAdvertisement], msgspec.Meta(max_length=DOMAINS_MAX)
]


class CoreReport(msgspec.Struct, frozen=True):
    """The advertisement of one core, and those it has from its peers."""

    local: KnownAdvertisement = msgspec.field(name="own")
    peers: _Advertisements = msgspec.field(name="known")

    def __post_init__(self) -> None:
        for name in self.peers:
            validate_domain_name(name)


class RouteDifference(msgspec.Struct, frozen=True):
    """An advertisement that a core lacks or has in another version."""

    domain: str
    core: str
    problem: str


class RouteCheckResult(msgspec.Struct, frozen=True):
    """Result of a consistency check."""

    cores: tuple[str, ...]
    """The cores that sent a report."""
    unreachable: dict[str, str]
    """The cores that did not, and why."""
    domains: int
    """Number of domains in all reports."""
    differences: tuple[RouteDifference, ...]

    @property
    def is_consistent(self) -> bool:
        """Whether all cores sent a report, and agree."""
        return bool(self.cores) and not (self.unreachable or self.differences)


def decode_report(value: object) -> CoreReport:
    """Decode a report; raises MalformedPayloadError if it is malformed."""
    try:
        return msgspec.convert(value, CoreReport)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise MalformedPayloadError(f"malformed report of a core: {error}") from None


def compare_reports(
    reports: Mapping[str, CoreReport], unreachable: Mapping[str, str]
) -> RouteCheckResult:
    """Compare the reports of cores; `unreachable` are the cores without a report, and why."""
    domains = sorted(
        {name for report in reports.values() for name in report.peers} | reports.keys()
    )
    differences = [difference for domain in domains for difference in _compare(domain, reports)]
    unreachable_by_name = dict(sorted(unreachable.items()))
    return RouteCheckResult(
        tuple(sorted(reports)), unreachable_by_name, len(domains), tuple(differences)
    )


def _compare(domain: str, reports: Mapping[str, CoreReport]) -> Iterator[RouteDifference]:
    """Yield the differences in the advertisements that cores have of one domain."""
    held_by_core = {
        core: reports[core].peers.get(domain) for core in sorted(reports) if core != domain
    }
    local = reports[domain].local if domain in reports else None
    newest_core = max(held_by_core, key=lambda core: _version(held_by_core[core]), default="")
    for core, held in held_by_core.items():
        problem = _find_problem(held, newest_core, held_by_core[newest_core], local)
        if problem is not None:
            yield RouteDifference(domain, core, problem)


def _version(held: KnownAdvertisement | None) -> tuple[int, int]:
    return (held.incarnation, held.number) if held is not None else (-1, -1)


def _find_problem(
    held: KnownAdvertisement | None,
    newest_core: str,
    newest: KnownAdvertisement | None,
    local: KnownAdvertisement | None,
) -> str | None:
    """Return what is wrong with the advertisement that a core has, or None.

    `local` is what the domain itself advertises, if it is a core that sent a report.
    """
    if held is None or newest is None:
        return "has no tunnel to it"
    if _version(held) != _version(newest):
        return f"has {held}; {newest_core} has {newest}"
    if local is not None:
        is_same = (held.incarnation, held.digest) == (local.incarnation, local.digest)
        return None if is_same else f"has {held}, which is not what it advertises now"
    if not held.number:
        return "has no advertisement of it"
    return None if held.digest == newest.digest else f"has another {held} than {newest_core}"
