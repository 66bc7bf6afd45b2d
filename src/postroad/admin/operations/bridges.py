"""Bridges: what waits to be sent to each peer, and what keeps it."""

from __future__ import annotations

import msgspec

from postroad.admin.errors import NotFound, nearest
from postroad.durable import BridgeStatus, PeerStatistics

from .limits import CountView, Limit
from .office import Office, change_mail
from .queues import LetterView, view_letter
from .table import Effect, operation

_AT_REST = "at rest"
_AWAY = "away"
_PAUSED = "paused"


class BridgeView(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for one peer, and how it is carried there."""

    peer: str
    target: str | None
    """Its address; None while it is not known."""
    phase: str
    """What the bridge does; `away` if the peer cannot be found, `at rest` if no node runs."""
    depth: int
    """Messages that the peer is not known to have."""
    oldest_age_s: float | None
    sent: int
    """Messages that the peer has accepted since the bridge was made."""
    posted: int
    """Messages for it in this epoch."""
    trouble: str | None
    """What went wrong last."""
    epoch: int
    is_paused: bool


@operation("bridge.ls")
async def list_bridges(office: Office) -> list[BridgeView]:
    """Peers that mail was ever posted to: how much waits for each, and what keeps it."""
    peers = (await office.queues.statistics()).peers
    health = await _health(office)
    idle = _AWAY if office.is_running else _AT_REST
    return [_view(name, it, health.get(name), idle) for name, it in sorted(peers.items())]


@operation("bridge.show")
async def show_bridge(office: Office, peer: str) -> BridgeView:
    """What waits for one peer, and what keeps it."""
    found = {it.peer: it for it in await list_bridges(office)}
    if peer not in found:
        raise NotFound(f"node {office.name} never posted to {peer!r}{nearest(peer, found)}")
    return found[peer]


@operation("bridge.pause", Effect.CHANGE)
async def pause_bridge(office: Office, peer: str) -> BridgeView:
    """Send a peer nothing more for now, also after a restart; its mail waits."""
    await change_mail(office, show_bridge, peer, office.queues.bridges.pause)
    return await show_bridge(office, peer)


@operation("bridge.resume", Effect.CHANGE)
async def resume_bridge(office: Office, peer: str) -> BridgeView:
    """Go on sending to a peer."""
    await change_mail(office, show_bridge, peer, office.queues.bridges.resume)
    return await show_bridge(office, peer)


@operation("bridge.peek")
async def peek_bridge(office: Office, peer: str, limit: Limit = 20) -> list[LetterView]:
    """Messages that wait for a peer, the first ones first; they stay there."""
    await show_bridge(office, peer)
    return [view_letter(it) for it in await office.queues.bridges.peek(peer, limit=limit)]


@operation("bridge.purge", Effect.DANGER, scope="bridge.show")
async def purge_bridge(office: Office, peer: str) -> CountView:
    """Throw away what waits for a peer; what is on its way may still arrive."""
    return CountView(
        count=await change_mail(office, show_bridge, peer, office.queues.bridges.purge)
    )


@operation("bridge.reset", Effect.DANGER, scope="bridge.show")
async def reset_bridge(office: Office, peer: str) -> BridgeView:
    """Begin anew with a peer, after one of the two stores was restored from a backup.

    Everything that waits is sent as if the peer had never heard of it: purge first what it has.
    """
    await change_mail(office, show_bridge, peer, office.queues.bridges.start_epoch)
    return await show_bridge(office, peer)


async def _health(office: Office) -> dict[str, BridgeStatus]:
    """How the bridges do; a process of its own that carries the mail is asked."""
    if not office.is_running:
        return {}
    try:
        status = await office.queues.bridges.status()
    except TimeoutError:
        return {}
    return {bridge.peer: bridge for bridge in status.bridges}


def _view(name: str, it: PeerStatistics, health: BridgeStatus | None, idle: str) -> BridgeView:
    phase = idle if health is None else health.state
    return BridgeView(
        peer=name,
        target=None if health is None else health.target,
        phase=_PAUSED if it.is_paused else phase,
        depth=it.depth,
        oldest_age_s=it.oldest_age_s,
        sent=0 if health is None else health.sent,
        posted=it.sent,
        trouble=None if health is None else health.last_error,
        epoch=it.epoch,
        is_paused=it.is_paused,
    )
