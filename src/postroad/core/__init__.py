"""Errors, limits, names, addresses, life cycles, fault points, traces: for every layer. Pure."""

from . import errors, faults, tracing
from .address import Address, to_address
from .errors import Outcome, PostroadError
from .lifecycle import Lifecycle
from .limits import Limits
from .names import validate_cluster_name, validate_node_name
from .throttle import LogThrottle, ThrottledLogger

__all__ = [
    "Address",
    "Lifecycle",
    "Limits",
    "LogThrottle",
    "Outcome",
    "PostroadError",
    "ThrottledLogger",
    "errors",
    "faults",
    "to_address",
    "tracing",
    "validate_cluster_name",
    "validate_node_name",
]
