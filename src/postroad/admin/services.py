"""Services of a program, looked at from outside."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import msgspec

from postroad.core.errors import ConfigError
from postroad.services.asyncapi import asyncapi_document
from postroad.services.broker import Broker
from postroad.services.service import Service

__all__ = ["describe_services", "load_services"]


def describe_services(target: str, *, title: str, version: str) -> str:
    """The AsyncAPI document of the services at a place in a program, as JSON.

    Args:
        target: as of `load_services`.
        title, version: of the document.
    """
    document = asyncapi_document(load_services(target), title=title, version=version)
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def load_services(target: str) -> list[Service]:
    """The services at `module:name`: a service, its class, a broker, or several of them.

    A module alone stands for all classes of services that are written in it. The current
    directory is looked at for the module too.

    Raises:
        ConfigError: there is no such place, or nothing of that sort.
    """
    module_name, _, name = target.partition(":")
    module = _import(module_name)
    if not name:
        found = [*_classes_in(module)]
        if not found:
            raise ConfigError(f"module {module_name!r} has no services of its own")
        return [_made(it) for it in found]
    try:
        value: Any = module
        for part in name.split("."):
            value = getattr(value, part)
    except AttributeError:
        raise ConfigError(f"module {module_name!r} has no {name!r}") from None
    return [*_services_of(value, target)]


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"there is no module {error.name!r}") from None
    except ValueError:
        raise ConfigError(f"{name!r} is no name of a module") from None


def _classes_in(module: ModuleType) -> Iterator[type[Service]]:
    for value in vars(module).values():
        is_service = inspect.isclass(value) and issubclass(value, Service)
        if is_service and value.__module__ == module.__name__:
            yield value


def _services_of(value: Any, target: str) -> Iterator[Service]:
    if isinstance(value, Service):
        yield value
    elif inspect.isclass(value) and issubclass(value, Service):
        yield _made(value)
    elif isinstance(value, Broker):
        yield from value.services()
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for item in value:
            yield from _services_of(item, target)
    else:
        raise ConfigError(f"{target} is no service, no broker and no list of them: {value!r:.60}")


def _made(kind: type[Service]) -> Service:
    try:
        return kind()
    except TypeError as error:
        raise ConfigError(
            f"{kind.__name__} cannot be made without arguments ({error}); name one that is made"
        ) from None
