"""Everything that operators can see and do, once: see `table`."""

from . import queues
from .office import NodeOffice, Office, StoreOffice
from .table import OPERATIONS, Effect, Operation, Parameter

__all__ = [
    "OPERATIONS",
    "Effect",
    "NodeOffice",
    "Office",
    "Operation",
    "Parameter",
    "StoreOffice",
    "queues",
]
