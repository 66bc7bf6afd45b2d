"""Postroad: a messaging fabric for Python clusters."""

from ._version import __version__
from .core import Address, Limits, Outcome, PostroadError, errors
from .net import Message, MessagingService, Protocol, Statistics, TlsConfig, Unicast, run

__all__ = [
    "Address",
    "Limits",
    "Message",
    "MessagingService",
    "Outcome",
    "PostroadError",
    "Protocol",
    "Statistics",
    "TlsConfig",
    "Unicast",
    "__version__",
    "errors",
    "run",
]
