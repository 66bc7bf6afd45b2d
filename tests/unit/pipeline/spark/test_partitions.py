"""How deliveries become parts of a batch."""

from __future__ import annotations

from postroad.pipeline.coordinator.records import InputDelivery
from postroad.pipeline.spark.coordinator_server import balance_partitions


def deliveries(*segments: int) -> list[InputDelivery]:
    return [
        InputDelivery(number, "in", {}, count, 0, 0, 0) for number, count in enumerate(segments, 1)
    ]


def loads(parts: list[list[InputDelivery]]) -> list[int]:
    return [sum(it.segments for it in part) for part in parts]


def test_every_core_gets_about_the_same() -> None:
    parts = balance_partitions(deliveries(5_000, 5_000, 2_000, 4_000, 4_000), 2)
    assert sorted(loads(parts)) == [9_000, 11_000]


def test_parts_follow_the_cores_of_the_cluster() -> None:
    assert len(balance_partitions(deliveries(*[1_000] * 64), 32)) == 32


def test_few_segments_are_not_scattered() -> None:
    assert len(balance_partitions(deliveries(*[10] * 20), 8)) == 1


def test_nothing_is_left_out() -> None:
    those = deliveries(*range(1, 100))
    parts = balance_partitions(those, 7)
    assert sorted(it.number for part in parts for it in part) == [it.number for it in those]
