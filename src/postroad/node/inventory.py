"""What a program gives a node to run, told in lines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from postroad.services import Service
from postroad.services.schema import full_name_of
from postroad.services.service import actions_of, events_of

from .app import App


def inventory(app: App) -> dict[str, list[str]]:
    """What was found of each kind; kinds of which there is nothing are left out."""
    found = {
        "actions": [line for it in app.services for line in _actions(it)],
        "events": [line for it in app.services for line in _events(it)],
        "consumers": [f"{it.queue} -> {it.handler.__name__}" for it in app.consumers],
        "flows": [_signature(it.name, it.function) for it in app.flows],
        "cells": [it.name for it in app.cells],
    }
    return {kind: lines for kind, lines in found.items() if lines}


def _actions(service: Service) -> Iterator[str]:
    for name, method, _ in actions_of(service):
        yield _signature(f"{_full_name(service)}.{name}", method)


def _events(service: Service) -> Iterator[str]:
    for pattern, method, _ in events_of(service):
        yield f"{pattern} -> {_full_name(service)}.{method.__name__}"


def _full_name(service: Service) -> str:
    return getattr(service, "full_name", None) or full_name_of(service.name, service.version)


def _signature(name: str, function: Callable[..., Any]) -> str:
    """A function as its callers see it: without what Postroad gives it."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:
        # What is imported for type checkers only cannot be evaluated.
        signature = inspect.signature(function)
    _, *given = signature.parameters.values()
    return f"{name}{signature.replace(parameters=given)}"
