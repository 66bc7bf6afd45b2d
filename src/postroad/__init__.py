"""Postroad: a messaging fabric for Python clusters."""

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .admin.sync_client import SyncClient
    from .cells import Cell
    from .core import PostroadError, RetryPolicy, errors
    from .core.errors import ConfigError, Reject, UsageError
    from .durable import Message, SyncTransaction, Transaction
    from .durable.injection import INJECTED
    from .flows import FlowContext, SyncFlowContext, flow, responder
    from .net import run
    from .node import App, Node, NodeConfig, Queue, consumer, current_node
    from .services import Context, Service, action, event

__all__ = [
    "INJECTED",
    "App",
    "Cell",
    "ConfigError",
    "Context",
    "FlowContext",
    "Message",
    "Node",
    "NodeConfig",
    "PostroadError",
    "Queue",
    "Reject",
    "RetryPolicy",
    "Service",
    "SyncClient",
    "SyncFlowContext",
    "SyncTransaction",
    "Transaction",
    "UsageError",
    "__version__",
    "action",
    "consumer",
    "current_node",
    "errors",
    "event",
    "flow",
    "responder",
    "run",
]

_HOMES = {
    "admin.sync_client": ("SyncClient",),
    "cells": ("Cell",),
    "core": ("PostroadError", "RetryPolicy", "errors"),
    "core.errors": ("ConfigError", "Reject", "UsageError"),
    "durable.injection": ("INJECTED",),
    "durable": ("Message", "SyncTransaction", "Transaction"),
    "flows": ("FlowContext", "SyncFlowContext", "flow", "responder"),
    "net": ("run",),
    "node": ("App", "Node", "NodeConfig", "Queue", "consumer", "current_node"),
    "services": ("Context", "Service", "action", "event"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # Nothing is loaded before it is used: commands, and programs that need one layer, start sooner.
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = import_module(f".{_HOME_OF[name]}", __name__)
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
