"""Seeds from DNS: every address record of the configured names, resolved periodically."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

from postroad.cluster.discovery.background import (
    SeedDiscovery,
    retry_delay_s,
    validate_list,
    validate_port,
    validate_seconds,
)
from postroad.core import Address
from postroad.core.errors import ConfigError

DEFAULT_PORT = 26502

# Jitter of the interval, for nodes that were started together.
_JITTER = 0.1

# Result of getaddrinfo; only the socket addresses are used.
_Records = list[tuple[Any, Any, Any, Any, tuple[Any, ...]]]


class DnsDiscovery(SeedDiscovery):
    """Resolves names; every A and AAAA record is a seed.

    A name that cannot be resolved keeps its last addresses and is retried sooner.

    Args:
        names: `host` or `host:port`; a host may be an IP address too.
        default_port: port of names without one.
        interval_s: seconds between two queries, plus or minus a tenth.
        timeout_s: timeout of a query in seconds; a later result counts in the next interval.
    """

    def __init__(
        self,
        names: Iterable[str],
        default_port: int = DEFAULT_PORT,
        interval_s: float = 60.0,
        *,
        timeout_s: float = 5.0,
    ) -> None:
        self._targets = frozenset(
            _parse(name, default_port) for name in validate_list("names", names)
        )
        if not self._targets:
            raise ConfigError("DNS discovery needs at least one name")
        self._interval_s = validate_seconds("interval_s", interval_s)
        self._timeout_s = validate_seconds("timeout_s", timeout_s)
        # The last result of each target, and the queries in flight.
        self._resolved: dict[Address, frozenset[Address]] = {}
        self._queries: dict[Address, asyncio.Task[_Records]] = {}
        source = ",".join(sorted(map(str, self._targets)))
        super().__init__(f"DNS {source}", first_result_s=timeout_s + 1.0)

    async def _discover(self) -> None:
        attempt = 0
        local = frozenset({self._address})
        while True:
            is_complete = await self._resolve(self._targets | local)
            # This node's host may be a name, or an IP address in another spelling.
            self._local_addresses = local | self._resolved.get(self._address, frozenset())
            self._report.set_connected(is_complete)
            self._publish_addresses(
                address
                for target in self._targets
                for address in self._resolved.get(target, frozenset())
            )
            attempt = 0 if is_complete else attempt + 1
            delay_s = self._interval_s * random.uniform(1 - _JITTER, 1 + _JITTER)
            await asyncio.sleep(retry_delay_s(attempt, self._interval_s) if attempt else delay_s)

    async def _resolve(self, targets: frozenset[Address]) -> bool:
        """Query all targets at once; return True if all were resolved."""
        # A resolver that hangs keeps its thread, so each target has one query at a time.
        for target in sorted(targets - self._queries.keys()):
            self._queries[target] = self._loop.create_task(self._query(target))
        await asyncio.wait(self._queries.values(), timeout=self._timeout_s)
        results = [self._record_result(target) for target in sorted(targets)]
        return all(results)

    async def _query(self, target: Address) -> _Records:
        return await self._loop.getaddrinfo(
            target.host, target.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )

    def _record_result(self, target: Address) -> bool:
        if not self._queries[target].done():
            self._report.report_failure(
                target.host, "cannot resolve %s: no reply within %g s", target, self._timeout_s
            )
            return False
        try:
            records = self._queries.pop(target).result()
        # A name that cannot be encoded for DNS is a UnicodeError.
        except (OSError, UnicodeError) as error:
            self._report.report_failure(target.host, "cannot resolve %s: %s", target.host, error)
            return False
        self._resolved[target] = frozenset(Address(*record[4][:2]) for record in records)
        return True

    async def _deregister(self) -> None:
        queries = list(self._queries.values())
        for query in queries:
            query.cancel()
        # Awaited, because asyncio logs exceptions that are never retrieved.
        await asyncio.gather(*queries, return_exceptions=True)


def _parse(name: str, default_port: int) -> Address:
    bare = name.strip("[]")
    try:
        ip_address(bare)
    except ValueError:
        pass  # It is a name.
    else:
        return validate_port(Address(bare, default_port))
    target = Address.parse(name) if ":" in name else Address(name, default_port)
    try:
        is_name = bool(target.host.encode("idna")) and not any(map(str.isspace, target.host))
    except UnicodeError:
        is_name = False
    if not is_name:
        raise ConfigError(f"cannot use DNS name {name!r}: the form is host or host:port")
    return validate_port(target)
