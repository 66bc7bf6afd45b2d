"""Members of the cluster."""

from __future__ import annotations

import msgspec

from postroad.admin.errors import NotFound, nearest
from postroad.node import Layer, Node

from .office import Office
from .table import operation


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A member of the cluster, as this node sees it."""

    name: str
    address: str
    state: str
    """`alive`, or `suspect`: it does not answer, and is removed if it goes on so."""
    is_local: bool
    round_trip_ms: float | None
    properties: dict[str, str]


@operation("cluster.ls")
async def list_members(office: Office) -> list[MemberView]:
    """Members of the cluster, this node first."""
    return members_of(office.node)


@operation("cluster.show")
async def show_member(office: Office, member: str) -> MemberView:
    """One member of the cluster."""
    found = {it.name: it for it in members_of(office.node)}
    if member not in found:
        raise NotFound(f"the cluster has no member {member!r}{nearest(member, found)}")
    return found[member]


def members_of(node: Node) -> list[MemberView]:
    """All members; a node without a cluster is alone."""
    if not node.config.has(Layer.CLUSTER):
        alone = MemberView(
            name=node.name,
            address=str(node.service.address),
            state="alive",
            is_local=True,
            round_trip_ms=None,
            properties={},
        )
        return [alone]
    trips = node.agent.statistics().round_trips_s
    return [
        MemberView(
            name=it.name,
            address=str(it.address),
            state=it.state.name.lower(),
            is_local=it.name == node.name,
            round_trip_ms=trips[it.name] * 1000 if it.name in trips else None,
            properties=dict(it.properties),
        )
        for it in node.agent.members
    ]
