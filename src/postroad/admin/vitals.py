"""What is looked at of a node all the time, found out once for everybody who looks."""

from __future__ import annotations

import resource
import sys
import time
import weakref

from postroad.durable import DeadLetterGroup, DurableQueuesStatistics
from postroad.flows import FlowStatus
from postroad.node import Node

from .readings import Rate, Reading

_KIB = 1024


class Vitals:
    """Numbers of one node that cost something, and rates that need an earlier look."""

    def __init__(self, node: Node) -> None:
        self._service = node.service
        self._requests = Rate()
        self._cpu = Rate()

        # These must not keep the node, which keeps them.
        of = weakref.proxy(node)

        async def count_mail() -> DurableQueuesStatistics:
            counted: DurableQueuesStatistics = await of.queues.statistics()
            return counted

        async def count_flows() -> dict[FlowStatus, int]:
            counted: dict[FlowStatus, int] = await of.flows.admin.counts()
            return counted

        async def group_dead() -> list[DeadLetterGroup]:
            grouped: list[DeadLetterGroup] = await of.queues.dead_letters.groups()
            return grouped

        self.mail = Reading(count_mail)
        self.dead = Reading(group_dead)
        self.flows = Reading(count_flows)

    def forget_mail(self) -> None:
        """An operator has changed something: whoever looks next shall see it."""
        self.mail.forget()
        self.dead.forget()

    def requests_per_s(self) -> float:
        """Requests and messages between nodes, both ways."""
        it = self._service.statistics()
        total = it.requests_sent + it.requests_received + it.messages_sent + it.local_requests
        total += it.tunnel_messages_sent + it.tunnel_messages_received
        return self._requests.look(total, time.monotonic())

    def cpu_share(self) -> float:
        """Of one core."""
        return self._cpu.look(time.process_time(), time.monotonic())

    def memory_bytes(self) -> int:
        """What the process holds in memory; where the system does not tell, what it ever held."""
        try:
            with open("/proc/self/statm", "rb") as file:
                return int(file.read().split()[1]) * resource.getpagesize()
        except OSError:
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return most if sys.platform == "darwin" else most * _KIB


_vitals: weakref.WeakKeyDictionary[Node, Vitals] = weakref.WeakKeyDictionary()


def vitals_of(node: Node) -> Vitals:
    """Those of a node."""
    found = _vitals.get(node)
    if found is None:
        found = _vitals[node] = Vitals(node)
    return found
