"""Postroad's messaging against NATS, gRPC, ZeroMQ and bare sockets.

Two processes on loopback per contender; the harness process only waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness import Section, Settings


def sections(settings: Settings) -> list[Section]:
    """Rate, latency, goodput and idle memory."""
    # Imported here, because every contender's process imports this package and must load no
    # other contender with it.
    from benchmarks.messaging import exchange, idle

    return [
        exchange.rate_section(settings),
        exchange.shared_core_section(settings),
        exchange.own_core_section(settings),
        exchange.goodput_section(settings),
        idle.section(settings),
    ]
