"""What the page of services takes from the code: errors, and everything that is bounded."""

from __future__ import annotations

from collections.abc import Iterator

from postroad import services
from postroad.core.limits import KIB, MIB
from postroad.services import info_form, schema, streams
from postroad.services.breaking import BREAKERS_MAX
from postroad.services.caching.memory import ENTRIES_MAX as CACHED_MAX
from postroad.services.calls import PENDING_MAX
from postroad.services.config import BrokerConfig
from postroad.services.errors import MoleculerError
from postroad.services.registry_config import RegistryConfig
from postroad.services.serializers import PACKET_BYTES_MAX
from postroad.services.serializers.depth import DEPTH_MAX
from postroad.services.stream_window import WINDOW_BYTES, WINDOW_PARTS
from postroad.services.stream_writer import CHUNK_BYTES_MAX
from postroad.services.topics import TOPIC_LENGTH_MAX
from postroad.services.transporters import outbox, tcp_arrivals, tcp_link, tcp_links

from .tables import table

_CONFIG = BrokerConfig()
_REGISTRY = RegistryConfig()


def errors_table() -> str:
    """Every error of services: what it is on the wire, and what it tells a caller."""
    kinds = (getattr(services, name) for name in services.__all__)
    errors = [it for it in kinds if isinstance(it, type) and issubclass(it, MoleculerError)]
    errors.sort(key=lambda it: it.code)
    head = ("error", "status", "type", "`retryable`", "`outcome`", "what happened")
    return table(head, (_error(it) for it in errors))


def _error(kind: type[MoleculerError]) -> tuple[str, ...]:
    told = f"`{kind.type}`" if kind.type else ""
    retryable = "yes" if kind.retryable else "no"
    meaning = (kind.__doc__ or "").partition("\n")[0]
    return f"`{kind.__name__}`", str(kind.status), told, retryable, kind.outcome.value, meaning


def limits_table() -> str:
    """What is bounded, by which number, and what happens beyond it."""
    return table(("what", "at most", "then"), _limits())


def _limits() -> Iterator[tuple[str, str, str]]:
    refused = "`QueueIsFullError`"
    yield "calls to other nodes that wait", f"{PENDING_MAX:,} (`pending_max`)", refused
    yield "events that wait for an acknowledgement", "`pending_max` as well", refused
    yield "calls of other nodes that run", f"{_CONFIG.serving_max:,} (`serving_max`)", refused
    events = "dropped, counted, logged; `ack=True` is told"
    yield "handlers of events that run", f"{_CONFIG.events_max:,} (`events_max`)", events
    waiting = f"{_size(outbox.WAITING_BYTES_MAX)} of a node"
    yield "packets that wait to be sent", waiting, refused
    yield "... over `tcp`", f"{_size(tcp_link.WAITING_BYTES_MAX)} for each node", refused
    yield "a packet that is read", _size(PACKET_BYTES_MAX), "dropped, counted"
    yield "values within values", f"{DEPTH_MAX} levels", "dropped, counted"
    streams_max = f"{_CONFIG.streams_max:,} (`streams_max`)"
    yield "streams that come in", streams_max, refused
    chunk = f"{_size(CHUNK_BYTES_MAX)}, less if the transporter carries less"
    yield "a chunk of bytes", chunk, "cut"
    window = f"{WINDOW_PARTS} parts or {_size(WINDOW_BYTES)}"
    yield "unread of a stream between Postroad nodes", window, "its sender waits"
    one = f"{_size(_CONFIG.stream_bytes_max)} (`stream_bytes_max`)"
    yield "unread of a stream from a Moleculer node", one, "it fails, `STREAM_OVERFLOW`"
    every = f"{_size(_CONFIG.streams_bytes_max)} (`streams_bytes_max`)"
    yield "unread of all streams", every, "the one that grows fails, `STREAM_OVERFLOW`"
    pool = f"{streams.POOLED_MAX:,} parts or {_size(streams.POOLED_BYTES_MAX)}"
    yield "parts of a stream that came too early", pool, "it fails, `STREAM_OVERFLOW`"
    yield "nodes", f"{_REGISTRY.nodes_max:,}", "more are not taken in"
    never = "the next must answer a ping before it is taken in"
    yield "nodes that never answered a ping", f"{_REGISTRY.unproven_max:,}", never
    yield "services of a node", f"{info_form.SERVICES_MAX:,}", "the rest is left out"
    entries = f"{info_form.ENTRIES_MAX:,} of each"
    yield "actions and events of a service", entries, "the rest is left out"
    name = f"{schema.NAME_LENGTH_MAX} characters"
    yield "a name of a service, action, event or node", name, "`ConfigError`"
    yield "a topic", f"{TOPIC_LENGTH_MAX:,} characters", "`ConfigError`"
    yield "circuit breakers", f"{BREAKERS_MAX:,}", "all begin anew"
    cached = f"{CACHED_MAX:,} (`entries_max`)"
    yield "results kept in memory", cached, "those not used for longest go"
    links = f"{tcp_links.CONNECTIONS_MAX} (`connections_max`)"
    yield "connections of `tcp` to others", links, "those idle for longest are ended"
    yield "connections of `tcp` from others", f"{tcp_arrivals.ARRIVALS_MAX:,}", "refused"


def _size(count: int) -> str:
    return f"{count // MIB} MiB" if count >= MIB else f"{count // KIB} KiB"
