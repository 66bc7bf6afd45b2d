"""Errors, limits, names, addresses, life cycles and fault points: what every layer shares. Pure."""

from . import errors, faults
from .address import Address, to_address
from .errors import Outcome, PostroadError
from .lifecycle import Lifecycle
from .limits import Limits
from .names import validate_cluster_name, validate_node_name
from .throttle import Throttle, ThrottledLog

__all__ = [
    "Address",
    "Lifecycle",
    "Limits",
    "Outcome",
    "PostroadError",
    "Throttle",
    "ThrottledLog",
    "errors",
    "faults",
    "to_address",
    "validate_cluster_name",
    "validate_node_name",
]
