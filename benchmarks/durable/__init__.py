"""Durable messages: Postroad, RabbitMQ and NATS JetStream, from post to acknowledgement.

A sender and a receiver process per contender, and the contender's server where it has one; the
harness process only waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness import Section, Settings


def sections(settings: Settings) -> list[Section]:
    """Latency, rate, fsyncs per message, backlog, many peers, types, and what one fsync takes."""
    # Imported here, because every contender's process imports this package and must load no
    # other contender with it.
    from benchmarks.durable import backlog, disk, exchange, fairness, latency, typed

    return [
        disk.latency_section(settings),
        latency.latency_section(settings),
        exchange.rate_section(settings),
        *exchange.fsync_sections(settings),
        *backlog.sections(settings),
        fairness.fairness_section(settings),
        *typed.typed_sections(settings),
    ]
