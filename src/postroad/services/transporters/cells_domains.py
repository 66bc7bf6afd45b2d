"""The domain that a node of services is in: its user's, one of its own, or one for the process."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AsyncExitStack
from weakref import WeakKeyDictionary

import msgspec

from postroad.cells import CellDomain, CellsConfig, Role, StaticCoreDiscovery
from postroad.core import Address, Limits
from postroad.core.errors import ConfigError
from postroad.net import MessagingService, TlsConfig

SCHEME = "cells://"
CLUSTER = "services"
STOP_GRACE_S = 1.0
"""How long a domain may take to send what is left, and its service to close."""

_CONFIG = CellsConfig(redial_max_delay_s=2.0, stop_grace_s=STOP_GRACE_S)


class DomainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a domain is made."""

    name: str | None = None
    """Of the domain; one that is listed as a core is a core."""
    cluster: str = CLUSTER
    """Nodes of another cluster are refused."""
    bind: Address | str | None = None
    """Where to listen; a core does so where it is listed, unless this says otherwise."""
    zone: str | None = None
    tls: TlsConfig | None = None
    secret: str | tuple[str, ...] | None = None
    """What all nodes of the cluster know, if it has a secret."""
    limits: Limits = Limits()
    config: CellsConfig = _CONFIG


def parse_url(url: str) -> dict[str, Address]:
    """The cores in `cells://host:port/name,host:port/name`; raises ConfigError if it is not so."""
    if not url.lower().startswith(SCHEME):
        raise ConfigError("the URL of cells begins with cells://")
    rest = url[len(SCHEME) :].strip().rstrip("/")
    if "@" in rest or "?" in rest:
        # It is not shown, because it may be a secret.
        raise ConfigError(
            "the URL of cells has no user, password or options; use certificates or a secret"
        )
    cores: dict[str, Address] = {}
    for entry in rest.split(",") if rest else ():
        where, _, name = entry.strip().partition("/")
        if not name:
            raise ConfigError(f"{entry!r:.200} names no core: write host:port/name")
        if name in cores:
            raise ConfigError(f"core {name!r:.200} is there twice")
        cores[name] = Address.parse(where)
    return cores


class DomainSource(ABC):
    """Gives a node its domain."""

    @abstractmethod
    async def open(self, name: str, node_id: str = "") -> CellDomain:
        """A running domain, of this name if it has to be made and nobody said otherwise.

        A node that is listed as a core by its id is that core. Raises OSError if there cannot be
        a domain now.
        """

    @abstractmethod
    async def close(self) -> None:
        """The node needs it no more. Doing so without `open` does nothing."""


class GivenDomain(DomainSource):
    """Somebody else's, who starts and stops it."""

    def __init__(self, domain: CellDomain) -> None:
        self._domain = domain

    async def open(self, name: str, node_id: str = "") -> CellDomain:
        return self._domain

    async def close(self) -> None:
        """It is not ours."""


class OwnDomain(DomainSource):
    """One for this node alone.

    Args:
        cores: where each core is.
        options: how it is made.
    """

    def __init__(self, cores: Mapping[str, Address], options: DomainOptions) -> None:
        self._cores = cores
        self._options = options
        self._opened: tuple[CellDomain, MessagingService] | None = None

    async def open(self, name: str, node_id: str = "") -> CellDomain:
        options = self._options
        name = options.name or (node_id if node_id in self._cores else name)
        bind = options.bind or self._cores.get(name) or "127.0.0.1:0"
        service = MessagingService(
            options.cluster,
            name,
            bind,
            tls=options.tls,
            limits=options.limits,
            secret=options.secret,
        )
        async with AsyncExitStack() as stack:
            await _listen(service)
            stack.push_async_exit(service)
            domain = CellDomain(
                service,
                role=Role.CORE if name in self._cores else Role.SATELLITE,
                zone=options.zone,
                core_discovery=StaticCoreDiscovery({it: [at] for it, at in self._cores.items()}),
                config=options.config,
            )
            await domain.start()
            stack.pop_all()
        self._opened = domain, service
        return domain

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            domain, service = opened
            await domain.stop(STOP_GRACE_S)
            await service.stop(STOP_GRACE_S)


async def _listen(service: MessagingService) -> None:
    try:
        await service.start()
    except ConfigError as error:
        if isinstance(error.__cause__, OSError):
            raise ConnectionError(f"cells: {error}") from error
        raise


class SharedDomain(DomainSource):
    """One for all nodes of this process that name no cores. It is there while one of them is."""

    def __init__(self) -> None:
        self._place: _Place | None = None

    async def open(self, name: str, node_id: str = "") -> CellDomain:
        place = _places.setdefault(asyncio.get_running_loop(), _Place())
        domain = await place.enter()
        self._place = place
        return domain

    async def close(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            await place.leave()


class _Place:
    """The domain that the nodes on one event loop share."""

    def __init__(self) -> None:
        self._users = 0
        self._own: OwnDomain | None = None
        self._domain: CellDomain
        self._changing = asyncio.Lock()

    async def enter(self) -> CellDomain:
        async with self._changing:
            if self._own is None:
                # It listens as every domain does, but nobody else knows the name of the cluster.
                own = OwnDomain({}, DomainOptions(cluster=os.urandom(16).hex()))
                self._domain = await own.open(f"process-{os.getpid()}")
                self._own = own
            self._users += 1
            return self._domain

    async def leave(self) -> None:
        async with self._changing:
            self._users -= 1
            if not self._users and self._own is not None:
                own, self._own = self._own, None
                await own.close()


_places: WeakKeyDictionary[asyncio.AbstractEventLoop, _Place] = WeakKeyDictionary()


def choose_source(where: CellDomain | str | None, options: DomainOptions) -> DomainSource:
    """What a user means; raises ConfigError if it cannot be."""
    has_options = options != DomainOptions()
    if isinstance(where, CellDomain):
        if has_options:
            raise ConfigError(f"{where} is made already: options are for a URL with cores")
        return GivenDomain(where)
    cores = parse_url(SCHEME if where is None else where)
    if cores:
        return OwnDomain(cores, options)
    if has_options:
        raise ConfigError("options are for a URL with cores: cells://host:port/name")
    return SharedDomain()
