"""Whether all cores know the same of every domain: reports compared. Pure.

A core reports which snapshot it has of each domain that it has a tunnel to, and what it offers
itself. If all is well every core has the newest snapshot of every domain; what a core has of
another is what that one offers.
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
    """Which snapshot of a domain a core has."""

    incarnation: Incarnation = 0
    number: Number = 0
    """0 if it has none yet, or if the offer is its own."""
    digest: Digest = b""

    def __str__(self) -> str:
        return f"#{self.number} of incarnation {self.incarnation}" if self.number else "nothing"


_Snapshots: TypeAlias = Annotated[
    dict[str, KnownAdvertisement], msgspec.Meta(max_length=DOMAINS_MAX)
]


class CoreReport(msgspec.Struct, frozen=True):
    """What one core offers and knows."""

    own: KnownAdvertisement
    known: _Snapshots

    def __post_init__(self) -> None:
        for name in self.known:
            validate_domain_name(name)


class RouteDifference(msgspec.Struct, frozen=True):
    """What a core should know of a domain, and does not."""

    domain: str
    core: str
    problem: str


class RouteCheckResult(msgspec.Struct, frozen=True):
    """What became of a check."""

    cores: tuple[str, ...]
    """The cores that answered."""
    unreachable: dict[str, str]
    """Those that did not, and why."""
    domains: int
    """How many domains they know of, all together."""
    differences: tuple[RouteDifference, ...]

    @property
    def is_consistent(self) -> bool:
        """Whether all cores answered, and agree."""
        return bool(self.cores) and not (self.unreachable or self.differences)


def decode_report(answer: object) -> CoreReport:
    """A report out of plain values; raises MalformedPayloadError if it is none."""
    try:
        return msgspec.convert(answer, CoreReport)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise MalformedPayloadError(f"no report of a core: {error}") from None


def compare_reports(
    reports: Mapping[str, CoreReport], silent: Mapping[str, str]
) -> RouteCheckResult:
    """Compare what cores know, by their names; `silent` are those who could not be asked."""
    domains = sorted({name for it in reports.values() for name in it.known} | reports.keys())
    differences = [it for domain in domains for it in _compare(domain, reports)]
    silenced = dict(sorted(silent.items()))
    return RouteCheckResult(tuple(sorted(reports)), silenced, len(domains), tuple(differences))


def _compare(domain: str, reports: Mapping[str, CoreReport]) -> Iterator[RouteDifference]:
    """What is wrong with what cores know of one domain."""
    known = {core: reports[core].known.get(domain) for core in sorted(reports) if core != domain}
    own = reports[domain].own if domain in reports else None
    newest = max(known, key=lambda core: _age(known[core]), default="")
    for core, has in known.items():
        problem = _problem(has, newest, known[newest], own)
        if problem is not None:
            yield RouteDifference(domain, core, problem)


def _age(known: KnownAdvertisement | None) -> tuple[int, int]:
    return (known.incarnation, known.number) if known is not None else (-1, -1)


def _problem(
    has: KnownAdvertisement | None,
    newest: str,
    known: KnownAdvertisement | None,
    own: KnownAdvertisement | None,
) -> str | None:
    """What is wrong with what a core has, if anything.

    Args:
        has: what it has.
        newest: the core that has the newest.
        known: what that one has.
        own: what the domain itself says it offers, if it was asked.
    """
    if has is None or known is None:
        return "has no tunnel to it"
    if _age(has) != _age(known):
        return f"has {has}; {newest} has {known}"
    if own is not None:
        is_same = (has.incarnation, has.digest) == (own.incarnation, own.digest)
        return None if is_same else f"has {has}, which is not what it offers now"
    if not has.number:
        return "has heard nothing of it"
    return None if has.digest == known.digest else f"has another {has} than {newest}"
