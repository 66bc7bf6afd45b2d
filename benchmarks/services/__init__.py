"""Services: calls and events between nodes, against Moleculer on Node.js over the same wires.

A server and a client process per contender, and the server of the transporter where it has one.
Both systems run the same small action, with JSON, without validation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness import Section, Settings


def sections(settings: Settings) -> list[Section]:
    """Calls here, calls elsewhere, events, and what a large cluster costs each node."""
    from benchmarks.services import crowd, exchange, local

    return [
        local.section(settings),
        *exchange.call_sections(settings),
        exchange.event_section(settings),
        crowd.section(settings),
    ]
