"""The domains with a tunnel to this one, and whether a message can have come the way it says.

The source path of a message is what everybody wrote who sent it on: a cell its address, then the
router of its domain `*@domain`, then the routers of the domains in between. Who is at the other end
of a tunnel is known by the tunnel. What lies behind that peer only the peer wrote, so that is
believed as far as it is possible:

- Behind a satellite there is nothing. What its own cells send on, they are the senders of.
- This domain, and a core that has a tunnel to it, do not send through others.
- A satellite with a tunnel to this domain tells the cores that it has tunnels to, and only those
  can have a message from it.

What a cell wrote of those who had the message before it cannot be known: it is the cell that is
taken for the sender, see `CellPath.sender`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from postroad.cells.addresses import LOCAL, CellPath, DomainInfo, Role

_NONE: frozenset[str] = frozenset()


class SourcePathFault(NamedTuple):
    """Why a message cannot have come as it says."""

    text: str
    should_reply: bool = False
    """Whether its sender is told: it may be on its way from before a tunnel came up."""


class NeighborTable:
    """What is known of the other ends of all tunnels.

    Args:
        own: this domain.
    """

    def __init__(self, local: DomainInfo) -> None:
        self._local_name = local.name
        self._roles: dict[str, Role] = {}
        # The domains that a neighbor has tunnels to, as it tells, and those that it told before:
        # what they had of it may still be on its way.
        self._reachable: dict[str, frozenset[str]] = {}
        self._reachable_before: dict[str, frozenset[str]] = {}

    def link_up(self, domain: DomainInfo) -> None:
        """A tunnel to a domain came up; what it told before holds until it tells anew."""
        self._roles[domain.name] = domain.role

    def link_down(self, name: str) -> None:
        """The tunnel to a domain is gone."""
        self._roles.pop(name, None)
        self._reachable.pop(name, None)
        self._reachable_before.pop(name, None)

    def set_reachable(self, name: str, reachable: Iterable[str]) -> bool:
        """A neighbor tells the domains it has tunnels to; gives whether that is something new."""
        before, after = self._reachable.get(name, _NONE), frozenset(reachable)
        if name not in self._roles or before == after:
            return False
        self._reachable[name], self._reachable_before[name] = after, before
        return True

    def find_source_fault(
        self, source: CellPath, peer: str, *, is_reply: bool = False
    ) -> SourcePathFault | None:
        """Why a message out of the tunnel to a peer cannot have this source path; None if it can.

        Replies may come by another way than they should: their ids cannot be guessed, and a tunnel
        may just have come up.
        """
        hops = source.hops
        if not hops or not hops[-1].is_domain or hops[-1].domain != peer:
            return SourcePathFault(f"a message that came from {source.last}")
        router = peer
        for hop in reversed(hops):
            if not hop.is_domain:
                if hop.domain in (LOCAL, router):
                    return None
                return SourcePathFault(f"a message of {hop} from the domain {router}")
            if hop.domain != router:
                fault = self._find_step_fault(hop.domain, router, is_reply)
                if fault is not None:
                    return fault
                router = hop.domain
        return None

    def _find_step_fault(
        self, previous: str, router: str, is_reply: bool
    ) -> SourcePathFault | None:
        """Why a domain cannot have handed a message to a router."""
        if self._roles.get(router) is Role.SATELLITE:
            return SourcePathFault(
                f"a message of {previous} from {router}, a satellite with nobody behind it"
            )
        if previous == self._local_name:
            return SourcePathFault(f"a message of this domain from {router}")
        role = self._roles.get(previous)
        if is_reply or role is None:
            return None
        if role is Role.CORE:
            text = f"a message of the core {previous} from {router}, not from its own tunnel"
            return SourcePathFault(text, should_reply=True)
        reachable = self._reachable.get(previous, _NONE) | self._reachable_before.get(
            previous, _NONE
        )
        # One that does not even tell of its tunnel to this domain tells of none.
        if self._local_name in reachable and router not in reachable:
            text = f"a message of {previous} from {router}, which {previous} has no tunnel to"
            return SourcePathFault(text, should_reply=True)
        return None
