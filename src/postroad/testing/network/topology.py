"""Hosts, names and the ways between them, and every fault a test can cause there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING

import msgspec

from postroad.core.errors import ConfigError, UsageError
from postroad.testing.event_log import EventLog

from .conditions import DEFAULT_CONDITIONS, LinkTable
from .hosts import SimHost
from .names import NameService
from .reading import reset_error
from .stream import MemoryTransport

if TYPE_CHECKING:
    from postroad.testing.loop import SimLoop

# What connections that stood still take longer, at most, once they can go on.
_RETRY_S_MAX = 0.2
_HOSTS_PER_NET = 250


class Topology:
    """What a test sees of the network.

    Hosts are named by their names. Faults may be caused at any moment and last until they are
    taken back; what chance decides follows from the seed of the loop.
    """

    def __init__(self, loop: SimLoop, rng: Random, log: EventLog) -> None:
        self.loop = loop
        self.rng = rng
        self.ways = LinkTable(rng)
        self.names = NameService()
        self._log = log
        self._hosts: dict[str, SimHost] = {}
        self._by_address: dict[str, SimHost] = {}
        # What tries again when a way opens or a host comes back.
        self._waiting: list[Callable[[], None]] = []
        # What the network does belongs to no simulated process; set by the loop.
        self.context: Context

    # Hosts and names.

    def add_host(self, name: str, address: str | None = None) -> SimHost:
        """A machine; its name resolves to its address, 10.0.0.1 for the first one."""
        number = len(self._hosts)
        net, last = divmod(max(number - 1, 0), _HOSTS_PER_NET)
        address = address or f"10.0.{net}.{last + 1}"
        if name in self._hosts or address in self._by_address:
            raise UsageError(f"there is a host {name!r} or one at {address} already")
        host = SimHost(name, address)
        self._hosts[name] = self._by_address[address] = host
        self.names.set(name, [address])
        return host

    def host(self, name: str) -> SimHost:
        """The machine of that name."""
        if name not in self._hosts:
            raise ConfigError(f"no host {name!r}; there are: {', '.join(self._hosts)}")
        return self._hosts[name]

    def set_name(self, name: str, addresses: str | Sequence[str]) -> None:
        """Change what a name resolves to: addresses, or names of hosts."""
        wanted = [addresses] if isinstance(addresses, str) else addresses
        found = [self._hosts[it].address if it in self._hosts else it for it in wanted]
        self.names.set(name, found)
        self._log.add("network", "name", f"{name} is {', '.join(found)}")

    def remove_name(self, name: str) -> None:
        """Have the name unknown from now on."""
        self.names.remove(name)
        self._log.add("network", "name", f"{name} is unknown")

    # Faults.

    def set_conditions(
        self,
        *,
        between: tuple[str, str] | None = None,
        delay_s: tuple[float, float] | None = None,
        loss: float | None = None,
        duplicate: float | None = None,
        reorder: float | None = None,
    ) -> None:
        """Change how the ways are, all of them or those between two hosts.

        Args:
            between: names of two hosts; without them all ways change, those set before too.
            delay_s: least and most time that anything takes.
            loss: chance of a datagram to be lost.
            duplicate: chance of a datagram to arrive twice.
            reorder: chance of a datagram to be overtaken by later ones.
        """
        wanted = {"delay_s": delay_s, "loss": loss, "duplicate": duplicate, "reorder": reorder}
        changes = {name: value for name, value in wanted.items() if value is not None}
        before = self.ways.default
        if between is not None:
            before = self.ways.get(*(self.host(name).name for name in between))
        self.ways.set(msgspec.structs.replace(before, **changes), between)
        where = "everywhere" if between is None else f"between {between[0]} and {between[1]}"
        told = ", ".join(f"{name} {value}" for name, value in changes.items())
        self._log.add("network", "disturbed", f"{where}: {told}")

    def reset_conditions(self) -> None:
        """Take back everything that `disturb` changed."""
        self.ways.set(DEFAULT_CONDITIONS, None)
        self._log.add("network", "calm")

    def partition(
        self, group: Iterable[str] | str, other: Iterable[str] | str, *, one_way: bool = False
    ) -> None:
        """Let nothing through between two groups, or from the first to the second.

        Data of connections waits, and arrives when the partition is healed; datagrams are lost.
        """
        firsts, seconds = self._names(group), self._names(other)
        self.ways.block(firsts, seconds)
        if not one_way:
            self.ways.block(seconds, firsts)
        arrow = "to" if one_way else "and"
        self._log.add("network", "partition", f"{','.join(firsts)} {arrow} {','.join(seconds)}")

    def heal(
        self, group: Iterable[str] | str | None = None, other: Iterable[str] | str | None = None
    ) -> None:
        """End every partition, or what keeps two groups apart."""
        if group is None or other is None:
            self.ways.unblock(None)
            self._log.add("network", "healed")
        else:
            firsts, seconds = self._names(group), self._names(other)
            self.ways.unblock((firsts, seconds))
            self._log.add("network", "healed", f"{','.join(firsts)} and {','.join(seconds)}")
        self._try_again()

    def reset_connections(self, first: str, second: str) -> int:
        """Break the connections between two hosts; returns how many there were."""
        far = self.host(second).name
        found = [
            it
            for it in self.host(first).sockets
            if isinstance(it, MemoryTransport) and it.outgoing.target.host.name == far
        ]
        for transport in found:
            self.break_connection(transport, reset_error())
        self._log.add("network", "reset", f"{first} and {second}: {len(found)} connections")
        return len(found)

    def slow_reader(self, name: str, bytes_per_s: float | None) -> None:
        """Have the processes of a host read each connection no faster; None lifts that."""
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise ConfigError(f"bytes_per_s={bytes_per_s} must be more than 0, or None")
        self.host(name).read_rate = bytes_per_s
        told = "without limit" if bytes_per_s is None else f"{bytes_per_s:g} bytes/s"
        self._log.add(name, "reads", told)

    def lose_power(self, name: str) -> None:
        """Turn a host off: it says nothing to anybody."""
        self.host(name).lose_power()

    def restore_power(self, name: str) -> None:
        """Turn a host on again; it knows of none of its old connections."""
        host = self.host(name)
        if not host.is_on:
            host.is_on = True
            self._try_again()

    def _names(self, group: Iterable[str] | str) -> list[str]:
        names = [group] if isinstance(group, str) else group
        return sorted(self.host(name).name for name in set(names))

    # For transports.

    def reaches(self, source: SimHost, target: SimHost) -> bool:
        """Whether something from the source arrives at the target now."""
        return target.is_on and self.ways.is_reachable(source.name, target.name)

    def on_link_open(self, retry: Callable[[], None]) -> None:
        """Have something called when a way may have opened."""
        self._waiting.append(retry)

    def break_connection(self, transport: MemoryTransport, error: OSError) -> None:
        """Have both ends lose a connection."""
        peer = transport.outgoing.target
        transport.reset_by_kernel(error)
        peer.reset_by_kernel(reset_error())

    def _try_again(self) -> None:
        waiting, self._waiting = self._waiting, []
        for retry in waiting:
            delay_s = self.rng.uniform(0, _RETRY_S_MAX)
            self.loop.call_later(delay_s, retry, context=self.context)
