"""Everything that can be configured of a node, as one tree of structs: `postroad.toml` as types.

What a layer itself can be told is its `tuning`; what is beside it says how the layer takes part.
"""

from __future__ import annotations

import enum
import math
import socket
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from postroad.cells import CellsConfig, Role
from postroad.cluster import MembershipConfig
from postroad.core import Address, Limits
from postroad.core.cluster_secret import check_secrets
from postroad.core.errors import ConfigError
from postroad.core.names import to_address, validate_cluster_name, validate_node_name
from postroad.durable import DurableQueuesConfig
from postroad.flows import FlowsConfig
from postroad.net import TlsConfig
from postroad.net.owned_files import read_file
from postroad.services import BrokerConfig

from .config import GuaranteedConfig
from .tracing import TracingConfig


class Layer(enum.Enum):
    """A part that a node may have, besides messages between nodes, which it always has."""

    CLUSTER = "cluster"
    CELLS = "cells"
    QUEUES = "queues"
    SERVICES = "services"
    FLOWS = "flows"

    @classmethod
    def _missing_(cls, value: object) -> Layer | None:
        # The former name.
        return cls.QUEUES if value == "mail" else None


_BELOW = {
    Layer.CLUSTER: (),
    Layer.CELLS: (Layer.CLUSTER,),
    Layer.QUEUES: (Layer.CLUSTER,),
    Layer.SERVICES: (),
    Layer.FLOWS: (Layer.QUEUES,),
}


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The node itself."""

    cluster: str = "postroad"
    """Nodes of other clusters are refused."""
    name: str = msgspec.field(default_factory=lambda: default_name())
    """What the others call it; by default the name of the host."""
    bind: str = "127.0.0.1:0"
    """Where it listens for other nodes; port 0 lets the system choose."""
    advertise: str | None = None
    """The address others reach it at; the bound one by default."""
    data: str = ".postroad"
    """The directory of its store and of what it tells the `postroad` command."""
    app: str | None = None
    """The program: a file such as `app.py`, or a module."""
    secret: str | None = None
    """What all nodes of the cluster know; whoever does not is refused. 16 characters or more."""
    secret_file: str | None = None
    """A file with the secret; of several lines the first is used, and all are accepted."""
    layers: tuple[Layer, ...] = tuple(Layer)
    """What it has besides messages between nodes."""

    def __post_init__(self) -> None:
        validate_cluster_name(self.cluster)
        validate_node_name(self.name)
        to_address(self.bind)
        if self.advertise is not None:
            to_address(self.advertise)
        for layer in self.layers:
            for below in _BELOW[layer]:
                if below not in self.layers:
                    raise ConfigError(
                        f"layers: {layer.value!r} needs {below.value!r}, which is not listed"
                    )
        if self.secret is not None:
            check_secrets((self.secret,))
            if self.secret_file is not None:
                raise ConfigError("secret and secret_file: give one of them")

    def read_secrets(self) -> tuple[str, ...]:
        """The secrets of the cluster, the one to use first; none if it has no secret."""
        if self.secret is not None:
            return (self.secret,)
        return () if self.secret_file is None else read_secret_file(self.secret_file)


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Certificates between nodes, in PEM; `postroad certs` makes them for development."""

    certificate: str
    """The node's certificate chain; its subject alternative name is the node's name."""
    key: str
    """The private key of the certificate."""
    ca: str
    """Certificates of those who sign the nodes of this cluster."""
    mutual: bool = True
    """Whether it demands a certificate of whoever connects. If not, who shows none is no member."""

    @property
    def config(self) -> TlsConfig:
        """The same for the network."""
        return TlsConfig(**msgspec.structs.asdict(self))


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How it finds the others, and what they know of it. At most one way to find them is given."""

    seeds: tuple[str, ...] = ()
    """Addresses, `host:port`, of some nodes of the cluster."""
    dns: str | None = None
    """A name whose addresses are nodes, `name:port`."""
    zookeeper: str | None = None
    """Servers of ZooKeeper, `host:port,host:port`, where nodes are registered."""
    properties: dict[str, str] = {}
    """What others shall know of this node."""
    tuning: MembershipConfig = MembershipConfig()

    def __post_init__(self) -> None:
        given = [it for it in ("seeds", "dns", "zookeeper") if getattr(self, it)]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)}: give one way to find other nodes")
        for contact in self.seeds:
            to_address(contact)
        if self.dns is not None:
            to_address(self.dns)


class CellsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The domain of cells that this node is."""

    role: Role = Role.CORE
    """Cores are connected to all other cores; satellites only to cores."""
    zone: str | None = None
    """Cores and consumers of the same zone are preferred."""
    cores: tuple[str, ...] | None = None
    """The names of all nodes that may be cores, the same list everywhere; by default whoever says
    so."""
    guaranteed: tuple[str, ...] = ()
    """Queues of cells whose messages are durable."""
    guarantees: GuaranteedConfig = GuaranteedConfig()
    tuning: CellsConfig = CellsConfig()


class QueuesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durable queues."""

    store: str | None = None
    """SQLite path, `postgresql://` URL, or `memory`, which is not durable; by default a file in the
    data directory."""
    accept: tuple[str, ...] = ("*",)
    """Patterns of the queues that other nodes may create by sending to them."""
    bridge: bool = True
    """Whether bridges run in this process; false if `postroad bridge` runs them."""
    tuning: DurableQueuesConfig = DurableQueuesConfig()


class ServicesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Services, and how they reach those of other nodes."""

    transporter: str | None = None
    """By default the cells of this node; or a URL such as `nats://127.0.0.1:4222`."""
    cache: str | None = None
    """Keeps results of actions: `memory`, or the URL of a Redis server."""
    durable_events: bool = True
    """Whether events can be durable; needs `queues`."""
    tuning: BrokerConfig = BrokerConfig()


class FlowsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conversations that survive every crash."""

    tuning: FlowsConfig = FlowsConfig()


class JobSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A job of a node, and how it is run."""

    path: str
    """Its file."""
    on: Literal["local", "spark"] = "local"
    """Plain Python, or Spark."""
    master: str | None = None
    """A Spark master; all cores of this machine by default."""
    conf: dict[str, str] = {}
    """Properties of Spark."""
    partitions: int | None = None
    """Partitions of a batch on Spark."""
    bind: str | None = None
    """Where Spark's executors reach this machine, as `host:port`."""
    start: bool = True
    """Whether it starts with the node, and not only when an operator says so."""

    @property
    def is_on_spark(self) -> bool:
        """Whether it runs on Spark."""
        return self.on == "spark" or self.master is not None


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs that this node runs."""

    jobs: tuple[str | JobSettings, ...] = ()
    """Job files, or tables such as `{ path = "clearing.toml", on = "spark" }`: they start with the
    node, and start again when they fail. Keys: `path`, `on` (`local` or `spark`), `master`, `conf`,
    `partitions`, `bind`, and `start`, which is false for jobs that only operators start."""

    @property
    def job_settings(self) -> list[JobSettings]:
        """Each job, with how it is run."""
        return [JobSettings(path=it) if isinstance(it, str) else it for it in self.jobs]


Remote: TypeAlias = Literal["off", "read", "change"]


class AdminSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What operators see: the HTTP API and the dashboard."""

    enabled: bool = True
    """Whether they are served at all."""
    bind: str = "127.0.0.1:8222"
    """Where the API and the dashboard are served."""
    token: str | None = None
    """Allows everything; made at the first start, and kept in the data directory, if not given."""
    read_token: str | None = None
    """Allows to look, and not to change anything."""
    certificate: str | None = None
    """Serves HTTPS with this certificate."""
    key: str | None = None
    """The private key of the certificate."""
    client_trust: str | None = None
    """Who shows a certificate signed by one of these needs no token."""
    remote: Remote | None = None
    """What operators of other nodes may do here.

    By default `read` if others must prove that they belong to the cluster, and else `off`.
    """
    body_bytes_max: int = 1024 * 1024
    """Largest body of a request."""
    clients_max: int = 1_000
    """Connections at the same time; for more, those that idle longest are closed."""
    request_timeout_s: float = 30.0
    """Time for a client to send a request, and for an action to be done."""

    def __post_init__(self) -> None:
        to_address(self.bind)
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("certificate and key: give both or neither")
        if self.client_trust is not None and self.certificate is None:
            raise ConfigError("client_trust needs HTTPS: give certificate and key")
        for field in ("token", "read_token"):
            value = getattr(self, field)
            if value is not None and len(value) < _TOKEN_CHARACTERS_MIN:
                raise ConfigError(
                    f"{field} is shorter than {_TOKEN_CHARACTERS_MIN} characters: "
                    "`openssl rand -hex 16` makes a good one"
                )
        for field in ("body_bytes_max", "clients_max", "request_timeout_s"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{field}={value!r} must be a finite number above 0")


class TracingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Traces: what one wish led to, over several nodes."""

    enabled: bool = False
    """Whether this node remembers its part of them."""
    tuning: TracingConfig = TracingConfig()


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the node says of itself."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """What is less important is left out."""
    format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object per line for programs."""


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node. Every setting has a default that needs no other machine and no server."""

    node: NodeSettings = msgspec.field(default_factory=NodeSettings)
    tls: TlsSettings | None = None
    """Certificates; without them everything between nodes travels in the clear."""
    limits: Limits = Limits()
    """Every maximum and timeout of messages between nodes."""
    cluster: ClusterSettings = msgspec.field(default_factory=ClusterSettings)
    cells: CellsSettings = CellsSettings()
    queues: QueuesSettings = QueuesSettings()
    services: ServicesSettings = msgspec.field(default_factory=ServicesSettings)
    flows: FlowsSettings = FlowsSettings()
    pipeline: PipelineSettings = PipelineSettings()
    admin: AdminSettings = AdminSettings()
    tracing: TracingSettings = TracingSettings()
    log: LogSettings = LogSettings()

    def has(self, layer: Layer) -> bool:
        """Whether the node has a part."""
        return layer in self.node.layers

    @property
    def is_closed(self) -> bool:
        """Whether only nodes that prove to belong to the cluster can talk to this one."""
        has_secret = self.node.secret is not None or self.node.secret_file is not None
        return has_secret or (self.tls is not None and self.tls.mutual)

    @property
    def admin_remote(self) -> Remote:
        """What operators of other nodes may do here."""
        return self.admin.remote or ("read" if self.is_closed else "off")

    @property
    def data(self) -> Path:
        """The directory of the node's files."""
        return Path(self.node.data)

    @property
    def store(self) -> str:
        """Where its durable queues are stored."""
        return self.queues.store or str(self.data / f"{self.node.name}.db")

    @property
    def admin_address(self) -> Address:
        """Where operators reach it."""
        return to_address(self.admin.bind)


_TOKEN_CHARACTERS_MIN = 16


def read_secret_file(path: str) -> tuple[str, ...]:
    """The secrets in a file, one in a line, the one to use first."""
    try:
        lines = read_file(Path(path)).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"node.secret_file: {path} cannot be read: {why}; `openssl rand -hex 32` makes a secret"
        ) from None
    secrets = tuple(line.strip() for line in lines if line.strip())
    try:
        check_secrets(secrets)
    except ConfigError as error:
        raise ConfigError(f"node.secret_file: {path}: {error}") from None
    return secrets


def default_name() -> str:
    """The name of this host, as far as it can be the name of a node."""
    host = socket.gethostname().partition(".")[0].lower()
    kept = "".join(it if it.isascii() and (it.isalnum() or it in "-_") else "-" for it in host)
    # A node may not be called `local`, but a host may.
    return "node" if kept == "local" else kept.strip("-_") or "node"
