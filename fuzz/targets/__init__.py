"""Every fuzz target by its name, one module per decoder."""

from __future__ import annotations

from fuzz.target import Target
from fuzz.targets import (
    cells,
    compression,
    connection,
    datagram,
    documented,
    durable,
    flows,
    handshake,
    hello,
    membership,
    node,
    pipeline,
    registries,
    sbe,
    services,
    transporters,
    version3,
    zeebe,
)

_MODULES = (
    handshake,
    documented,
    zeebe,
    version3,
    hello,
    sbe,
    compression,
    datagram,
    connection,
    membership,
    durable,
    flows,
    cells,
    services,
    transporters,
    registries,
    node,
    pipeline,
)

TARGETS: dict[str, Target] = {
    target.name: target for module in _MODULES for target in module.TARGETS
}
