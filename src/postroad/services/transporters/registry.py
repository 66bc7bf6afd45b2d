"""Transporters by name and by URL."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from postroad.core.errors import ConfigError

from .transporter import Transporter

# Each needs an extra of its own, so modules are imported when they are asked for.
_CLASSES = {
    "amqp": ("amqp", "AmqpTransporter"),
    "amqps": ("amqp", "AmqpTransporter"),
    "cells": ("cells", "CellsTransporter"),
    "memory": ("memory", "MemoryTransporter"),
    "mqtt": ("mqtt", "MqttTransporter"),
    "mqtts": ("mqtt", "MqttTransporter"),
    "nats": ("nats", "NatsTransporter"),
    "redis": ("redis", "RedisTransporter"),
    "rediss": ("redis", "RedisTransporter"),
    "tcp": ("tcp", "TcpTransporter"),
    "tls": ("nats", "NatsTransporter"),
}


def make_transporter(said: str) -> Transporter:
    """The transporter for a name, or a URL such as `nats://127.0.0.1:4222`.

    Raises:
        ConfigError: there is none of that name.
        MissingExtraError: the extra it needs is not installed.
    """
    name, separator, _ = said.partition("://")
    found = _CLASSES.get(name.lower())
    if found is None:
        # What is no word may hold a password.
        shown = f" {name!r}" if name.isalnum() else " of that name"
        raise ConfigError(f"no transporter{shown}; there are {', '.join(sorted(_CLASSES))}")
    module, kind = found
    make = cast(Callable[..., Transporter], getattr(import_module(f".{module}", __package__), kind))
    return make(said) if separator else make()
