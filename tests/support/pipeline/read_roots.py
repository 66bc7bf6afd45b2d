"""The roots of a delivery one by one, as plain data: runners read them in columns."""

from __future__ import annotations

from collections.abc import Iterator

from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.coordinator.records import (
    InputDelivery,
    RootInput,
    decode_or_reject,
    to_root_input,
)


async def read_roots(desk: JobCoordinator, delivery: InputDelivery) -> list[RootInput]:
    """The same whenever it is read."""
    if delivery.position is not None:
        return [*_read_split(desk, delivery)]
    roots = await desk.retry_roots(delivery.number, None, delivery.segments)
    return [
        to_root_input(root.root, delivery.task, root.generation, root.segment, root.published)
        for root in roots
    ]


def _read_split(desk: JobCoordinator, delivery: InputDelivery) -> Iterator[RootInput]:
    assert delivery.position is not None
    task, connector = delivery.task, desk.sources[delivery.task]
    for chunk in connector.read(delivery.position):
        for position, raw in zip(chunk.positions, chunk.raws, strict=True):
            root = desk._program.ack_ids.root(task, chunk.source, position)
            segment = decode_or_reject(raw, connector.decode)
            yield RootInput(root, task, delivery.generation, segment, raw=raw)
