"""What typed queues carry: announced to other nodes, and compared with what those announce.

The announcement is the metadata of an internal service, which every node with services hears of.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from postroad.core.errors import ConfigError
from postroad.node.app import App
from postroad.services import Context, Service, event
from postroad.services.told_schemas import choose, is_tellable

from .codec import type_name
from .queue import Queue
from .schema_compatibility import Break, find_breaks

logger = logging.getLogger("postroad.node")

_KEY = "queueSchemas"
_REASONS_MAX = 3


def declared_queues(app: App) -> dict[str, Queue[Any]]:
    """The typed queues of an app, by name.

    Raises:
        ConfigError: one of them is declared with two types.
    """
    queues: dict[str, Queue[Any]] = {}
    consumed = [consumer.typed for consumer in app.consumers if consumer.typed is not None]
    for queue in (*app.queues, *consumed):
        known = queues.setdefault(queue.name, queue)
        if known.codec.kind != queue.codec.kind:
            raise ConfigError(
                f"queue {queue.name!r} is declared with two types: "
                f"{type_name(known.codec.kind)} and {type_name(queue.codec.kind)}; "
                "declare it once, and import it where it is used"
            )
    return queues


def schemas_of(queues: Mapping[str, Queue[Any]]) -> dict[str, dict[str, Any]]:
    """The JSON Schemas of queues, by name; those of bytes, or without a schema, are left out."""
    schemas = {}
    for name, queue in queues.items():
        try:
            schema = queue.codec.schema()
        except ConfigError as error:
            logger.warning("the type of queue %r is not announced: %s", name, error)
            continue
        if schema:
            schemas[name] = schema
    return schemas


class QueueTypes(Service):
    """The types of the queues of a node, and what it knows of those of other nodes.

    Args:
        app: whose queues they are.

    Raises:
        ConfigError: a queue is declared with two types.
    """

    name = "$queues"

    def __init__(self, app: App) -> None:
        self.queues = declared_queues(app)
        self.schemas = schemas_of(self.queues)
        """By queue."""
        self.metadata = {_KEY: choose(self.schemas)}  # type: ignore[misc] # Each node has others.
        # The last differences that were logged, by node and queue.
        self._logged: dict[tuple[str, str], list[Break]] = {}

    def schema_at(self, node: str, queue: str) -> dict[str, Any] | None:
        """What another node announces of a queue; None if it announces nothing."""
        return dict(self._announced(node)).get(queue)

    @event("$node.connected")
    def on_node_connected(self, ctx: Context) -> None:
        """Compare the queues of a node with those here."""
        self._compare(ctx.params["node"])

    @event("$node.updated")
    def on_node_updated(self, ctx: Context) -> None:
        """Compare the queues of a node with those here, again."""
        self._compare(ctx.params["node"])

    def _announced(self, node: str) -> Iterator[tuple[str, dict[str, Any]]]:
        record = self.broker.registry.node(node)
        for service in () if record is None else record.info.services:
            if service.name == self.name:
                schemas = service.metadata.get(_KEY)
                for queue, schema in schemas.items() if isinstance(schemas, Mapping) else ():
                    if isinstance(queue, str) and is_tellable(schema):
                        yield queue, schema

    def _compare(self, node: str) -> None:
        for queue, schema in self._announced(node):
            if queue in self.schemas and (breaks := self._find_breaks(node, queue, schema)):
                if self._logged.get((node, queue)) != breaks:
                    self._log(node, queue, breaks)
                self._logged[node, queue] = breaks

    def _find_breaks(self, node: str, queue: str, schema: dict[str, Any]) -> list[Break]:
        own, here = self.schemas[queue], self.broker.node_id
        try:
            return [
                *find_breaks(own, schema, writer_name=here, reader_name=node),
                *find_breaks(schema, own, writer_name=node, reader_name=here),
            ]
        except ConfigError as error:
            return [Break("$", str(error))]

    def _log(self, node: str, queue: str, breaks: list[Break]) -> None:
        reasons = [f"{each.place}: {each.reason}" for each in breaks[:_REASONS_MAX]]
        if len(breaks) > _REASONS_MAX:
            reasons.append(f"and {len(breaks) - _REASONS_MAX} more")
        logger.warning(
            "queue %r is declared with another type at node %s: %s; compare them with "
            "`postroad schema check`",
            queue,
            node,
            "; ".join(reasons),
        )
