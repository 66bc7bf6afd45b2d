"""Every time of guaranteed queues."""

from __future__ import annotations

import math

import msgspec

from postroad.core.errors import ConfigError


class GuaranteedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the guaranteed queues of a domain, in seconds; the defaults suit most."""

    ask_timeout_s: float = 2.0
    """How long the cores may take to tell who consumes a queue."""
    remember_s: float = 1.0
    """How long what they told is taken to be so."""
    look_first_s: float = 0.05
    """The pause before looking again for somebody who consumes a queue; it doubles."""
    look_max_s: float = 1.0
    """The longest such pause."""
    patience_s: float = 1.0
    """How long messages wait for a cell here to consume their queue, before they are sent on."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{field}={value!r} must be a finite number above 0")
