"""What a program has a node run: services, flows, consumers and cells, found in its modules."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from postroad.cells import Cell
from postroad.core.errors import ConfigError
from postroad.flows import FlowDefinition
from postroad.services import Middleware, Service

from .queues.consuming import Consuming, consumers_of
from .queues.queue import Queue

if TYPE_CHECKING:
    from .node import Node

Lifespan = Callable[["Node"], AbstractAsyncContextManager[Any]]
"""What runs around the program: `lifespan(node)`, entered when it can use all layers."""


class App(msgspec.Struct, kw_only=True):
    """What a node runs for its user."""

    services: Sequence[Service] = ()
    flows: Sequence[FlowDefinition[Any, Any]] = ()
    consumers: Sequence[Any] = ()
    """Functions that `@consumer` marks; afterwards the `Consuming` of each."""
    queues: Sequence[Queue[Any]] = ()
    """Typed queues whose schemas are announced; those of consumers are, too."""
    cells: Sequence[Cell] = ()
    middlewares: Sequence[Middleware] = ()
    lifespan: Lifespan | None = None

    def __post_init__(self) -> None:
        self.consumers = [mark for each in self.consumers for mark in _marks_of(each)]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run."""
        return not (self.services or self.flows or self.consumers or self.cells or self.lifespan)


def _marks_of(marked: object) -> tuple[Consuming, ...]:
    marks = (marked,) if isinstance(marked, Consuming) else consumers_of(marked)
    if not marks:
        raise ConfigError(f"{marked!r} is no consumer: decorate it with @consumer(queue)")
    return marks


def app_of(module: ModuleType) -> App:
    """All that is in a module: classes of services and cells made there, flows, and consumers.

    Services and cells that the module has made already are taken as they are, and so are its
    middlewares. An async context manager called `lifespan` runs around everything.
    """
    values = [*vars(module).values()]
    services = [it for it in values if isinstance(it, Service)]
    services += _made(Service, values, module, {type(it) for it in services})
    cells = [it for it in values if isinstance(it, Cell)]
    known = {type(it) for it in cells}
    cells += _made(Cell, values, module, known)  # type: ignore[type-abstract]
    marked = _unique(consumers_of(it) for it in values if inspect.isfunction(it))
    return App(
        services=services,
        flows=_unique([it] for it in values if isinstance(it, FlowDefinition)),
        consumers=marked,
        queues=_unique([value] for value in values if isinstance(value, Queue)),
        cells=cells,
        middlewares=[it for it in values if isinstance(it, Middleware)],
        lifespan=getattr(module, "lifespan", None),
    )


T = TypeVar("T")


def _made(kind: type[T], values: list[Any], module: ModuleType, known: set[type]) -> Iterator[T]:
    for value in values:
        is_kind = inspect.isclass(value) and issubclass(value, kind)
        if is_kind and value.__module__ == module.__name__ and value not in known:
            yield make(value)


def make(kind: type[T]) -> T:
    """An object of a class that needs no arguments."""
    try:
        return kind()
    except TypeError as error:
        raise ConfigError(
            f"{kind.__name__} cannot be made without arguments ({error}); name one that is made"
        ) from None


def _unique(groups: Any) -> list[Any]:
    found: list[Any] = []
    for group in groups:
        found += [it for it in group if it not in found]
    return found


def load_app(target: str) -> App:
    """Everything in a file such as `app.py`, or in a module.

    Raises:
        ConfigError: there is none, or nothing in it that a node could run.
    """
    app = app_of(load_module(target))
    if app.is_empty:
        raise ConfigError(
            f"{target} has nothing to run: no Service, no @flow, no @consumer, no Cell"
        )
    return app


def load_module(target: str) -> ModuleType:
    """Import a file or a module; the directory of the file, or the current one, is looked at."""
    if not target.endswith(".py"):
        return import_named(target)
    path = Path(target).resolve()
    if not path.is_file():
        raise ConfigError(f"there is no file {target}")
    _look_at(str(path.parent))
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{target} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    # Flows and functions of pipelines are found again by the name of their module.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def import_named(name: str) -> ModuleType:
    """Import a module, which may be in the current directory."""
    _look_at(os.getcwd())
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"there is no module {error.name!r}") from None
    except ValueError:
        raise ConfigError(f"{name!r} is no name of a module") from None


def _look_at(directory: str) -> None:
    if directory not in sys.path and not (directory == os.getcwd() and "" in sys.path):
        sys.path.insert(0, directory)
