"""How deep values lie within each other: deep ones break whoever walks through them."""

from __future__ import annotations

from typing import Any

from postroad.core.errors import MalformedPayloadError
from postroad.services.packets import Packet

DEPTH_MAX = 100
"""As MessagePack of the original system has it."""


def check_depth(packet: Packet) -> None:
    """Raise MalformedPayloadError if something in a packet lies too deep."""
    level: list[Any] = [getattr(packet, name) for name in packet.__struct_fields__]
    level = [value for value in level if type(value) in (dict, list)]
    for _ in range(DEPTH_MAX):
        if not level:
            return
        level = [
            child
            for container in level
            for child in (container.values() if type(container) is dict else container)
            if type(child) in (dict, list)
        ]
    if level:
        raise MalformedPayloadError(f"no {packet.KIND}: more than {DEPTH_MAX} levels")
