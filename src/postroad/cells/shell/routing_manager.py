"""The routing manager: shows advertisements, and checks that all cores have the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec

from postroad.cells.addresses import Role
from postroad.cells.cell import Cell
from postroad.cells.messages import CellMessage
from postroad.cells.routing.advertisements import (
    CoreReport,
    KnownAdvertisement,
    RouteCheckResult,
    compare_reports,
    decode_report,
)
from postroad.cells.routing.advertiser import build_advertisement
from postroad.cells.shell.commands import command, quote
from postroad.cells.shell.operations import Seconds
from postroad.cells.shell.views import format_fields, format_names, format_table, one_line
from postroad.core import PostroadError
from postroad.core.errors import ConfigError, MessagingError, UsageError

_REPORT = "report"
"""Request of one routing manager to another for its CoreReport."""
# Updates are always in flight, so differences are checked again after this delay.
_RECHECK_DELAY_S = 1.0


class RoutingManager(Cell):
    """Advertisements of domains, and their consistency."""

    is_system = True

    def __init__(self, name: str = "RoutingMgr") -> None:
        # Commands may wait for other domains, which may wait for this one: a queue would deadlock.
        super().__init__(name, concurrency=64)

    def handle(self, message: CellMessage) -> Any:
        """Reply to another routing manager with the report of this core."""
        if message.body != _REPORT:
            raise UsageError(f"{self.name} accepts commands only; try 'help'")
        return self._report()

    def _report(self) -> CoreReport:
        domain = self.domain
        learner = domain.propagator.learner
        advertisement = build_advertisement(domain.table, domain.identity)
        acks = {name: learner.ack_for(name) for name in learner.advertisements()}
        return CoreReport(
            KnownAdvertisement(domain.service.incarnation, 0, advertisement.digest()),
            {
                name: KnownAdvertisement(ack.incarnation, ack.number, ack.digest)
                for name, ack in acks.items()
            },
        )

    # Advertisements.

    @command("ls", is_read=True)
    def show_advertisements(self, domain: str | None = None) -> str:
        """List the advertisements of the peers of this domain, or all names of one.

        BEHIND: the peer has not acknowledged the advertisement of this domain.
        """
        if domain is not None:
            return self._describe_domain(domain)
        peers = self.domain.propagator.learner.advertisements()
        if not peers:
            return "no tunnels"
        headings = ("DOMAIN", "ROLE", "ZONE", "NUMBER", "BEHIND", "QUEUES", "TOPICS")
        return format_table(headings, map(self._row, peers))

    def _row(self, name: str) -> tuple[object, ...]:
        propagator = self.domain.propagator
        advertisement, ack = (
            propagator.learner.advertisements()[name],
            propagator.learner.ack_for(name),
        )
        is_unacknowledged = name in propagator.advertiser.unacknowledged()
        return (
            name,
            self._role_of(name),
            advertisement.zone,
            f"#{ack.number}" if ack.number else None,
            "yes" if is_unacknowledged else "no",
            format_names(advertisement.queues),
            format_names(advertisement.topics),
        )

    def _role_of(self, name: str) -> str | None:
        link = self.domain.links.by_domain.get(name)
        return None if link is None else link.domain.role.value

    def _describe_domain(self, name: str) -> str:
        learner = self.domain.propagator.learner
        advertisement = learner.advertisements().get(name)
        if advertisement is None:
            raise ConfigError(f"no tunnel to domain {quote(name)}; see 'ls'")
        ack = learner.ack_for(name)
        head = format_fields(
            (
                ("domain", name),
                ("role", self._role_of(name)),
                ("zone", advertisement.zone),
                ("incarnation", ack.incarnation),
                ("number", f"#{ack.number}"),
                ("digest", ack.digest.hex()),
            )
        )
        rows = [
            *(("queue", name) for name in advertisement.queues),
            *(("topic", name) for name in advertisement.topics),
        ]
        rows += [("tunnel to", name) for name in advertisement.domains]
        return f"{head}\n\n{format_table(('TYPE', 'NAME'), rows)}" if rows else head

    # Consistency check.

    @command("check", is_read=True)
    async def check(self, json: bool = False, timeout_s: Seconds = 3.0) -> str:
        """Check that all cores have the same advertisement of every domain.

        Each core has TIMEOUT_S seconds to reply; differences are checked again a second later.
        """
        result = await self._compare(timeout_s)
        if result.differences:
            await asyncio.sleep(_RECHECK_DELAY_S)
            result = await self._compare(timeout_s)
        if not json:
            return "\n".join(_in_words(result))
        values = {"is_consistent": result.is_consistent, **msgspec.structs.asdict(result)}
        return msgspec.json.encode(values).decode()

    async def _compare(self, timeout_s: float) -> RouteCheckResult:
        cores = self._cores()
        replies = await asyncio.gather(*(self._request_report(core, timeout_s) for core in cores))
        reports: dict[str, CoreReport] = {}
        unreachable: dict[str, str] = {}
        for core, reply in zip(cores, replies, strict=True):
            if isinstance(reply, CoreReport):
                reports[core] = reply
            else:
                unreachable[core] = reply
        return compare_reports(reports, unreachable)

    def _cores(self) -> list[str]:
        """Return all cores: by tunnels, by core discovery, and this domain if it is one."""
        domain = self.domain
        cores = {*domain.propagator.cores(), *domain.dialer.cores}
        if domain.identity.role is Role.CORE:
            cores.add(domain.name)
        return sorted(cores)

    async def _request_report(self, core: str, timeout_s: float) -> CoreReport | str:
        """Return the report of a core, or why there is none."""
        if core == self.domain.name:
            return self._report()
        try:
            reply = await self.call(f"{self.name}@{core}", _REPORT, timeout=timeout_s, wait=False)
            return decode_report(reply)
        except MessagingError as error:
            return one_line(error.detail)
        except PostroadError as error:
            return one_line(error)


def _in_words(result: RouteCheckResult) -> Iterator[str]:
    if not (result.cores or result.unreachable):
        yield "no cores are known"
        return
    for core, why in result.unreachable.items():
        yield f"core {core} did not reply: {why}"
    if result.differences:
        rows = (
            (difference.domain, difference.core, difference.problem)
            for difference in result.differences
        )
        yield format_table(("DOMAIN", "CORE", "PROBLEM"), rows)
    elif result.cores:
        agree = "agree on" if len(result.cores) > 1 else "alone reports"
        yield f"{', '.join(result.cores)} {agree} {result.domains} domains"
