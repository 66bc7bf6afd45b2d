"""Nodes in processes of their own, which tests may pause or kill: `python -m … ROLE ARGUMENT …`.

They end with their standard input.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from postroad.cells import CellDomain, Role, StaticCoreDiscovery
from postroad.cells.addresses import DomainInfo
from postroad.cells.core_discovery import MembershipCoreDiscovery, ZooKeeperCoreDiscovery
from postroad.cluster.discovery import ZooKeeperDiscovery
from postroad.core import Address
from postroad.net import MessagingService
from tests.support.cells.nodes import CLUSTER, LIMITS, QUICK
from tests.support.cluster.nodes import running_node
from tests.support.net.processes import running_module, until_input_ends
from tests.support.servers.zookeeper import SESSION_TIMEOUT_S

Child = AbstractAsyncContextManager[asyncio.subprocess.Process]
_MODULE = "tests.support.cells.child_processes"


def child_domain(name: str, core: str, address: Address) -> Child:
    """A satellite of a core; its cell `echo` answers, and consumes `work`."""
    return running_module(_MODULE, "satellite", name, core, str(address))


async def be_satellite(name: str, core: str, address: str) -> None:
    locations = StaticCoreDiscovery({core: [address]})
    async with (
        MessagingService(CLUSTER, name, limits=LIMITS) as service,
        CellDomain(service, role=Role.SATELLITE, core_discovery=locations, config=QUICK) as domain,
    ):
        domain.add_function("echo", lambda message: message.payload, consume=["work"])
        await until_input_ends()


def core_member(name: str, contact: Address) -> Child:
    """A core that is a member of the cluster."""
    return running_module(_MODULE, "member", name, str(contact))


async def be_member(name: str, contact: str) -> None:
    async with running_node(name, Address.parse(contact)) as node:
        locations = MembershipCoreDiscovery(node.agent)
        await locations.start(DomainInfo(name, Role.CORE), (node.address,), _ignore)
        await until_input_ends()
        await locations.stop()


def registered_core(hosts: str, cluster: str, root: str, name: str, address: Address) -> Child:
    """A core that is entered in ZooKeeper."""
    return running_module(_MODULE, "core", hosts, cluster, root, name, str(address))


async def be_core(hosts: str, cluster: str, root: str, name: str, endpoint: str) -> None:
    locations = ZooKeeperCoreDiscovery(hosts, cluster, root, session_timeout_s=SESSION_TIMEOUT_S)
    await locations.start(DomainInfo(name, Role.CORE), (Address.parse(endpoint),), _ignore)
    await until_input_ends()
    await locations.stop()


def registered_node(hosts: str, cluster: str, root: str, name: str, address: Address) -> Child:
    """A node that is entered in ZooKeeper."""
    return running_module(_MODULE, "node", hosts, cluster, root, name, str(address))


async def be_node(hosts: str, cluster: str, root: str, name: str, address: str) -> None:
    discovery = ZooKeeperDiscovery(hosts, cluster, root, session_timeout_s=SESSION_TIMEOUT_S)
    await discovery.start(name, Address.parse(address), _ignore)
    await until_input_ends()
    await discovery.stop()


def _ignore(_others: object) -> None:
    """They do not matter here."""


ROLES: dict[str, Callable[..., object]] = {
    "satellite": be_satellite,
    "member": be_member,
    "core": be_core,
    "node": be_node,
}

if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    asyncio.run(ROLES[role](*arguments))  # type: ignore[arg-type]
