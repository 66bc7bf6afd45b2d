"""The neighbor table: peers of this domain, and the validation of source paths.

Every hop of a source path was written by its forwarder: a cell writes its address, then its domain
writes `*@domain`, then the domains in between write theirs. The tunnel authenticates the peer at
its other end. The hops behind that peer are written by the peer alone, so they are accepted only if
they are possible:

- A satellite has no domain behind it. Messages that its cells forward have these cells as senders.
- This domain, and a core with a tunnel to it, do not send through other domains.
- A satellite with a tunnel to this domain advertises the cores that it has tunnels to; its messages
  come through these cores only.

Hops before a cell cannot be verified: that cell counts as the sender, see `CellPath.sender`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from postroad.cells.addresses import LOCAL, CellPath, DomainInfo, Role

_NONE: frozenset[str] = frozenset()


class SourcePathFault(NamedTuple):
    """Why a source path is invalid."""

    text: str
    should_reply: bool = False
    """Whether to send an error reply: the message may be older than a new tunnel."""


class NeighborTable:
    """Roles and tunnels of the peers of a domain."""

    def __init__(self, local: DomainInfo) -> None:
        self._local_name = local.name
        self._roles: dict[str, Role] = {}
        # The domains that a peer advertises tunnels to, and those of its previous advertisement,
        # through which messages may still be in flight.
        self._reachable: dict[str, frozenset[str]] = {}
        self._reachable_before: dict[str, frozenset[str]] = {}

    def link_up(self, domain: DomainInfo) -> None:
        """Add a peer; its last advertisement holds until the next one."""
        self._roles[domain.name] = domain.role

    def link_down(self, name: str) -> None:
        """Remove a peer whose tunnel is lost."""
        self._roles.pop(name, None)
        self._reachable.pop(name, None)
        self._reachable_before.pop(name, None)

    def set_reachable(self, name: str, reachable: Iterable[str]) -> bool:
        """Set the domains that a peer has tunnels to; return whether they changed."""
        before, after = self._reachable.get(name, _NONE), frozenset(reachable)
        if name not in self._roles or before == after:
            return False
        self._reachable[name], self._reachable_before[name] = after, before
        return True

    def find_source_fault(
        self, source: CellPath, peer: str, *, is_reply: bool = False
    ) -> SourcePathFault | None:
        """Return why a message from a peer cannot have this source path, or None if it can.

        Replies may come through other domains: their ids cannot be guessed, and a tunnel may
        just have come up.
        """
        hops = source.hops
        if not hops or not hops[-1].is_domain or hops[-1].domain != peer:
            return SourcePathFault(f"forged source: last hop {source.last} is not the peer {peer}")
        router = peer
        for hop in reversed(hops):
            if not hop.is_domain:
                if hop.domain in (LOCAL, router):
                    return None
                return SourcePathFault(f"forged source: cell {hop} is not in domain {router}")
            if hop.domain != router:
                fault = self._find_step_fault(hop.domain, router, is_reply)
                if fault is not None:
                    return fault
                router = hop.domain
        return None

    def _find_step_fault(
        self, previous: str, router: str, is_reply: bool
    ) -> SourcePathFault | None:
        """Return why the domain `previous` cannot have sent a message to the domain `router`."""
        if self._roles.get(router) is Role.SATELLITE:
            return SourcePathFault(f"forged source: domain {previous} behind satellite {router}")
        if previous == self._local_name:
            return SourcePathFault(f"forged source: this domain behind {router}")
        role = self._roles.get(previous)
        if is_reply or role is None:
            return None
        if role is Role.CORE:
            text = f"invalid source: core {previous} behind {router}, but it has its own tunnel"
            return SourcePathFault(text, should_reply=True)
        reachable = self._reachable.get(previous, _NONE) | self._reachable_before.get(
            previous, _NONE
        )
        # A peer that does not list its tunnel to this domain advertises no tunnels at all.
        if self._local_name in reachable and router not in reachable:
            text = f"invalid source: {previous} behind {router}, to which it has no tunnel"
            return SourcePathFault(text, should_reply=True)
        return None
