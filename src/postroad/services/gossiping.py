"""What nodes that speak TCP to each other make of each other's gossip.

A node tells another what it knows of all; the other answers with what it knows better. For each
node the larger seq is the newer, and that of a node that is offline is one more than its last.
Whoever hears that it is offline raises its own above that.

Beyond that, which nodes of the original system do, and without harm to them:

- A node that is said to be offline, and with which there is a connection, is not given up but
  told of it, so that a node that only some cannot reach does not lose the calls of all others.
- Whoever tells a lower seq of itself than it had, or another life with the same, is in a new life
  that does not know of the old, unless the connection to the old one still answers.
- What would take a node away, or what it offers, is asked of the node itself; see `doubts`.
- This node is raised above whatever others remember of a former life of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from postroad.core.errors import MalformedPayloadError
from postroad.core.limits import KIB

from .gossip import (
    GossipRequest,
    GossipResponse,
    Known,
    News,
    read_gone,
    read_known,
    read_news,
)
from .info_form import read_info, write_info
from .kinds import VERSION
from .nodes import Change, EntriesRefused, NodeConflict, NodeRecord
from .registry import Registry
from .schema import NodeInfo

RESPONSE_BYTES_MAX = 512 * KIB
"""About what one response may take; a longer answer is several. Packets have limits."""
DOUBT_S = 1.0
"""A node must tell a lower seq of itself for so long before its former life is over: what it told
before may still be on its way."""
RIVALRIES_MAX = 3
"""So often another process may raise its seq above that of this node, which has the same name."""

_ROW_BYTES = 300

IsLinked = Callable[[str], bool]


class Heard(msgspec.Struct):
    """What follows from a packet."""

    changes: list[Change] = msgspec.field(default_factory=list)
    """For the broker."""
    responses: list[GossipResponse] = msgspec.field(default_factory=list)
    """For the sender."""
    is_behind: bool = False
    """Whether the sender knows more than this node, so that it should be asked."""
    denied: dict[str, int] = msgspec.field(default_factory=dict)
    """Nodes that others believe to be offline with a seq, and that should be told so."""
    is_outrun: bool = False
    """Whether this node has become newer, so that others should be told."""


class _Answer:
    """What this node knows better than another."""

    def __init__(self, sender: str) -> None:
        self._sender = sender
        self._online: dict[str, list[Any]] = {}
        self._offline: dict[str, int] = {}

    def tell(self, node: NodeRecord) -> None:
        """All that is known of a node."""
        if node.is_available:
            self._online[node.id] = [write_info(node.info), node.cpu_seq, node.cpu or 0]
        else:
            self._offline[node.id] = node.seq

    def tell_cpu(self, node: NodeRecord) -> None:
        """How busy a node is."""
        self._online[node.id] = [node.cpu_seq, node.cpu or 0]

    def responses(self) -> Iterator[GossipResponse]:
        """As many as it takes; none if there is nothing to say."""
        online: dict[str, list[Any]] = {}
        offline = self._offline
        size = _ROW_BYTES * len(offline)
        for node_id, row in self._online.items():
            row_size = _size_of(row)
            if (online or offline) and size + row_size > RESPONSE_BYTES_MAX:
                yield self._response(online, offline)
                online, offline, size = {}, {}, 0
            online[node_id] = row
            size += row_size
        if online or offline:
            yield self._response(online, offline)

    def _response(self, online: dict[str, list[Any]], offline: dict[str, int]) -> GossipResponse:
        return GossipResponse(
            online=online or UNSET, offline=offline or UNSET, ver=VERSION, sender=self._sender
        )


def _size_of(row: list[Any]) -> int:
    """About how many bytes a row takes, whatever the serializer."""
    if len(row) == 2:
        return _ROW_BYTES
    try:
        return len(msgspec.json.encode(row)) + _ROW_BYTES
    except (TypeError, ValueError, OverflowError):
        return RESPONSE_BYTES_MAX


class Gossiping:
    """The gossip of one node. It changes the registry, and sends nothing.

    Args:
        registry: what this node knows.
        is_linked: whether there is a connection to a node now.
    """

    def __init__(self, registry: Registry, is_linked: IsLinked) -> None:
        self._registry = registry
        self._is_linked = is_linked
        # Nodes that told a lower seq than this, and since when.
        self._doubts: dict[str, tuple[int, float]] = {}
        # How often each other life of this node was newer than it.
        self._rivals: dict[str, int] = {}

    # What to tell.

    def make_request(self, denied: Mapping[str, int] | None = None) -> GossipRequest:
        """What this node knows of all; `denied` are said to be offline with a seq.

        Doubtful nodes are left out, so that they tell themselves what they are.
        """
        self._registry.local_info()
        offline = dict(denied or {})
        online = {}
        for node in self._registry.nodes():
            if node.is_available and node.id not in offline and node.doubt is None:
                online[node.id] = [node.seq, node.cpu_seq, node.cpu or 0]
            elif not node.is_available:
                offline.setdefault(node.id, node.seq)
        return GossipRequest(
            online=online or UNSET, offline=offline or UNSET, ver=VERSION, sender=self._own_id
        )

    def make_introduction(self, *, is_stopping: bool = False) -> GossipResponse:
        """What this node offers, for those who did not ask."""
        info = self._registry.local_info(is_stopping=is_stopping)
        local = self._registry.local
        row = [write_info(info), local.cpu_seq, local.cpu or 0]
        return GossipResponse(online={local.id: row}, ver=VERSION, sender=local.id)

    def make_goodbye(self) -> GossipResponse:
        """That this node is gone."""
        local = self._registry.local
        return GossipResponse(offline={local.id: local.seq + 1}, ver=VERSION, sender=local.id)

    # What is heard.

    def receive_request(self, packet: GossipRequest, now: float) -> Heard:
        """Somebody tells what it knows, and wants to know what this node knows better."""
        heard, answer = Heard(), _Answer(self._own_id)
        self._registry.local_info()
        known = {row.node_id: row for row in read_known(packet)}
        gone = {row.node_id: row.seq for row in read_gone(packet)}
        self._watch_sender(packet.sender, known.get(packet.sender), now, heard)
        for node in self._registry.nodes():
            row, gone_seq = known.get(node.id), gone.get(node.id, 0)
            seq = gone_seq or (row.seq if row is not None else 0)
            if node.is_local and max(seq, gone_seq + 1) > node.seq:
                self._outrun(seq, heard)
                answer.tell(node)
            elif seq < node.seq:
                answer.tell(node)
            elif gone_seq:
                self._hear_gone(node, gone_seq, packet.sender, now, heard)
            elif row is not None and node.is_available:
                self._compare_cpu(node, row, answer)
        heard.responses = list(answer.responses())
        heard.is_behind = heard.is_behind or any(map(self._is_news, known.values()))
        return heard

    def receive_response(self, packet: GossipResponse, now: float) -> Heard:
        """Somebody tells what it knows better."""
        heard = Heard()
        for news in read_news(packet):
            if news.node_id == self._own_id:
                self._hear_of_self(news, heard)
            else:
                self._hear_news(news, packet.sender, now, heard)
        for node_id, seq in read_gone(packet):
            node = self._registry.node(node_id)
            if node is not None and node.is_local:
                self._outrun(seq, heard)
            elif node is not None and node.seq < seq:
                self._hear_gone(node, seq, packet.sender, now, heard)
        return heard

    # Requests.

    def _compare_cpu(self, node: NodeRecord, known: Known, answer: _Answer) -> None:
        if known.cpu_seq < node.cpu_seq:
            answer.tell_cpu(node)
        else:
            self._registry.receive_cpu(node.id, known.cpu, known.cpu_seq)

    def _is_news(self, row: Known) -> bool:
        node = self._registry.node(row.node_id)
        return node is None or (not node.is_local and row.seq > node.seq)

    def _watch_sender(self, sender: str, own: Known | None, now: float, heard: Heard) -> None:
        """Look at what a node says of itself, which nobody knows better."""
        node = self._registry.node(sender)
        if node is None or not node.is_available:
            heard.is_behind = True
        if node is None or not node.is_available or own is None or own.seq >= node.seq:
            self._doubts.pop(sender, None)
            return
        seq, since = self._doubts.setdefault(sender, (node.seq, now))
        if own.seq < seq and now - since >= DOUBT_S:
            del self._doubts[sender]
            heard.changes += self._registry.doubt_node(sender, now)
            heard.is_behind = True

    # Responses.

    def _hear_news(self, news: News, sender: str, now: float, heard: Heard) -> None:
        if news.info is not None:
            try:
                read = read_info(news.info)
            except MalformedPayloadError as error:
                heard.changes.append(EntriesRefused(news.node_id, (str(error),)))
                return
            node = self._registry.node(news.node_id)
            is_asked = node is not None and node.doubt is not None and sender == node.id
            if node is None or node.seq < read.info.seq or is_asked:
                heard.changes += self._registry.receive_info(news.node_id, read, now)
            elif sender == node.id and _is_other_life(node, read.info):
                heard.changes += self._registry.doubt_node(node.id, now)
                heard.is_behind = True
        if news.cpu_seq is not None and news.cpu is not None:
            self._registry.receive_cpu(news.node_id, news.cpu, news.cpu_seq)

    def _hear_of_self(self, news: News, heard: Heard) -> None:
        """Somebody remembers a former life of this node, or there is another of its name."""
        if news.info is None:
            return
        try:
            info = read_info(news.info).info
        except MalformedPayloadError:
            return
        local = self._registry.local
        if info.instance_id == local.instance_id or info.seq < local.seq:
            return
        self._outrun(info.seq, heard)
        times = self._rivals.get(info.instance_id, 0) + 1
        # A life that is over does not go on to raise its seq.
        self._rivals = {info.instance_id: times}
        if times == RIVALRIES_MAX:
            conflict = NodeConflict(local.id, info.instance_id, info.hostname, info.ip_list)
            heard.changes.append(conflict)

    # Both.

    @property
    def _own_id(self) -> str:
        return self._registry.local.id

    def _hear_gone(self, node: NodeRecord, seq: int, sender: str, now: float, heard: Heard) -> None:
        """Somebody says that another node is offline, with a seq that is not older than here."""
        is_doubtful = node.is_available and sender != node.id and self._is_linked(node.id)
        if is_doubtful:
            heard.denied[node.id] = seq
        else:
            heard.changes += self._registry.receive_offline(node.id, seq, now)

    def _outrun(self, seq: int, heard: Heard) -> None:
        before = self._registry.local.seq
        self._registry.outrun(seq)
        heard.is_outrun = heard.is_outrun or self._registry.local.seq > before


def _is_other_life(node: NodeRecord, info: NodeInfo) -> bool:
    return node.is_available and node.seq == info.seq and node.instance_id != info.instance_id
