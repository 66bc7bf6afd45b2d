"""Postroad: a messaging fabric for Python clusters."""

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .core import Address, Limits, Outcome, PostroadError, errors
    from .net import (
        DatagramService,
        MessagingService,
        MessagingStatistics,
        ProtocolConfig,
        RawMessage,
        TlsConfig,
        run,
    )

__all__ = [
    "Address",
    "DatagramService",
    "Limits",
    "MessagingService",
    "MessagingStatistics",
    "Outcome",
    "PostroadError",
    "ProtocolConfig",
    "RawMessage",
    "TlsConfig",
    "__version__",
    "errors",
    "run",
]

_OF_CORE = frozenset(("Address", "Limits", "Outcome", "PostroadError", "errors"))


def __getattr__(name: str) -> Any:
    # Nothing is loaded before it is used: commands, and programs that need one layer, start sooner.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = import_module(".core" if name in _OF_CORE else ".net", __name__)
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
