"""Consistency check of routes: whether all cores have the same advertisement of every domain.

A core reports which advertisement it has of each peer, and its own. In a consistent network every
core has the newest advertisement of every domain, and what it has of another core is what that
core advertises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, TypeAlias

import msgspec

from postroad.cells.addresses import validate_domain_name
from postroad.cells.routing.advertisements import Digest, Incarnation, Number
from postroad.core.errors import MalformedPayloadError

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

    Args:
        held: the advertisement that the core has.
        newest_core: the core that has the newest one.
        newest: that newest advertisement.
        local: what the domain itself advertises, if it is a core that sent a report.
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
