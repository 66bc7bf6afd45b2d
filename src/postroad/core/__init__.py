"""Errors, limits, names, addresses, lifecycle, fault points and tracing for all layers. Pure."""

from postroad.core import errors, tracing
from postroad.core import fault_points as faults
from postroad.core.errors import Outcome, PostroadError
from postroad.core.lifecycle import Lifecycle
from postroad.core.limits import Limits, RetryPolicy
from postroad.core.log_throttle import ThrottledLogger
from postroad.core.names import Address, to_address, validate_cluster_name, validate_node_name

__all__ = [
    "Address",
    "Lifecycle",
    "Limits",
    "Outcome",
    "PostroadError",
    "RetryPolicy",
    "ThrottledLogger",
    "errors",
    "faults",
    "to_address",
    "tracing",
    "validate_cluster_name",
    "validate_node_name",
]
