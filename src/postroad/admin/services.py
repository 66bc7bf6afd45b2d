"""Services of a program, looked at from outside."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from postroad.core.errors import ConfigError
from postroad.node.app import App, app_of, import_named, make
from postroad.services.asyncapi import asyncapi_document
from postroad.services.broker import Broker
from postroad.services.service import Service

from .schemas import queue_channels

__all__ = ["describe_services", "load_services"]


def describe_services(target: str, *, title: str, version: str) -> str:
    """The AsyncAPI document of the services at a place in a program, as JSON.

    A module alone is described with its typed queues.

    Args:
        target: as of `load_services`.
        title, version: of the document.
    """
    app = app_of(import_named(target)) if ":" not in target else App()
    queues = list(queue_channels(app))
    services = [*app.services] if queues else load_services(target)
    document = asyncapi_document(services, queues=queues, title=title, version=version)
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def load_services(target: str) -> list[Service]:
    """The services at `module:name`: a service, its class, a broker, or several of them.

    A module alone stands for all services that a node would run of it. The current directory is
    looked at for the module too.

    Raises:
        ConfigError: there is no such place, or nothing of that sort.
    """
    module_name, _, name = target.partition(":")
    module = import_named(module_name)
    if not name:
        found = [*app_of(module).services]
        if not found:
            raise ConfigError(f"module {module_name!r} has no services of its own")
        return found
    try:
        value: Any = module
        for part in name.split("."):
            value = getattr(value, part)
    except AttributeError:
        raise ConfigError(f"module {module_name!r} has no {name!r}") from None
    return [*_services_of(value, target)]


def _services_of(value: Any, target: str) -> Iterator[Service]:
    if isinstance(value, Service):
        yield value
    elif inspect.isclass(value) and issubclass(value, Service):
        yield make(value)
    elif isinstance(value, Broker):
        yield from value.services()
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for item in value:
            yield from _services_of(item, target)
    else:
        raise ConfigError(f"{target} is no service, no broker and no list of them: {value!r:.60}")
