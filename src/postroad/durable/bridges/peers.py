"""Where peers are: from the members of a cluster, or from a fixed list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from postroad.cluster import ClusterAgent, MembershipEvent, MembershipEventType
from postroad.core import Address, to_address, validate_node_name

PeerListener: TypeAlias = Callable[[str, Address | None], None]
"""Called with the name of a peer and its address; None if it has left."""


class PeerDirectory(Protocol):
    """Looks up the addresses of peers, and notifies of changes."""

    def lookup(self, peer: str) -> Address | None:
        """Return the address of a peer; None if it is not known."""

    def subscribe(self, listener: PeerListener) -> Callable[[], None]:
        """Call a function with changes; returns a function that unsubscribes."""


class StaticPeerDirectory(PeerDirectory):
    """A list that only its owner changes."""

    def __init__(self, addresses: Mapping[str, Address | str] | None = None) -> None:
        self._addresses = {
            validate_node_name(name): to_address(address)
            for name, address in (addresses or {}).items()
        }
        self._listeners: list[PeerListener] = []

    def lookup(self, peer: str) -> Address | None:
        return self._addresses.get(peer)

    def set(self, peer: str, address: Address | str | None) -> None:
        """Set the address of a peer; None if it has left."""
        if address is None:
            self._addresses.pop(peer, None)
        else:
            self._addresses[validate_node_name(peer)] = to_address(address)
        for listener in list(self._listeners):
            listener(peer, self._addresses.get(peer))

    def subscribe(self, listener: PeerListener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)


class ClusterPeerDirectory(PeerDirectory):
    """The members of the cluster."""

    def __init__(self, agent: ClusterAgent) -> None:
        self._agent = agent

    def lookup(self, peer: str) -> Address | None:
        member = self._agent.member(peer)
        return None if member is None else member.address

    def subscribe(self, listener: PeerListener) -> Callable[[], None]:
        def on_change(change: MembershipEvent) -> None:
            is_removed = change.kind is MembershipEventType.REMOVED
            listener(change.member.name, None if is_removed else change.member.address)

        self._agent.add_listener(on_change)
        return lambda: self._agent.remove_listener(on_change)
