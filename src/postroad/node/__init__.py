"""A node: what its configuration asks for, put together, and what its user's program gives it."""

from .app import App, app_of, load_app
from .config import GuaranteedConfig
from .content import ID_HEADER, KEY_HEADER
from .current import current_node
from .durable_events import DurableEvents
from .guaranteed import GuaranteedQueues
from .health import Part, Readiness, State
from .node import Node
from .queues.consuming import Consuming, consumer
from .queues.queue import Queue
from .settings import Layer, NodeConfig

__all__ = [
    "ID_HEADER",
    "KEY_HEADER",
    "App",
    "Consuming",
    "DurableEvents",
    "GuaranteedConfig",
    "GuaranteedQueues",
    "Layer",
    "Node",
    "NodeConfig",
    "Part",
    "Queue",
    "Readiness",
    "State",
    "app_of",
    "consumer",
    "current_node",
    "load_app",
]
