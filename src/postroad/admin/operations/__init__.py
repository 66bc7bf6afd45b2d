"""Everything that operators can see and do, once: see `table`."""

from . import (
    bridges,
    cells,
    cluster,
    dead_letters,
    flows,
    jobs,
    maps,
    node,
    queues,
    search,
    services,
    traces,
)
from .office import Ask, NodeOffice, Office, StoreOffice
from .resting import at_rest
from .table import OPERATIONS, Effect, Operation, Parameter

__all__ = [
    "OPERATIONS",
    "Ask",
    "Effect",
    "NodeOffice",
    "Office",
    "Operation",
    "Parameter",
    "StoreOffice",
    "at_rest",
    "bridges",
    "cells",
    "cluster",
    "dead_letters",
    "flows",
    "jobs",
    "maps",
    "node",
    "queues",
    "search",
    "services",
    "traces",
]
