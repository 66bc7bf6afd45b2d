"""Building the description of a service from what its author wrote.

What others must not see is left out here: private actions, secure settings, and what cannot be
sent, such as functions.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from postroad.core.errors import ConfigError

from .schema import (
    ActionInfo,
    Definition,
    EventInfo,
    ServiceInfo,
    Version,
    Visibility,
    action_name_of,
    fault_of_name,
    full_name_of,
)

SECURE_SETTINGS = "$secureSettings"
NO_VERSION_PREFIX = "$noVersionPrefix"
NO_SERVICE_NAME_PREFIX = "$noServiceNamePrefix"

# A fallback that is published makes callers of the original system hide the real error.
_NEVER_PUBLISHED = frozenset({"handler", "fallback", "hooks", "service", "name", "rawName"})
_DEPTH_MAX = 32
_NOT_SENDABLE = object()


def describe_service(
    name: str,
    *,
    version: Version | None = None,
    settings: Definition | None = None,
    metadata: Definition | None = None,
    actions: Mapping[str, Definition] | None = None,
    events: Mapping[str, Definition] | None = None,
) -> ServiceInfo:
    """The whole description of a service, private actions included.

    Args:
        name: without the version.
        version: a number or a text, part of the full name.
        settings: as the author wrote them; those named in `$secureSettings` stay here.
        metadata: for others to read.
        actions: definitions by raw name; a `name` in one of them replaces that.
        events: definitions by pattern; `name` and `group` as in the original system.

    Raises:
        ConfigError: a name is wrong, or there twice.
    """
    options = settings or {}
    check_name(name, "service")
    if version == "":
        raise ConfigError(f"service {name!r}: the version must not be empty")
    has_version = options.get(NO_VERSION_PREFIX) is not True
    full_name = full_name_of(name, version, has_prefix=has_version)
    has_service = options.get(NO_SERVICE_NAME_PREFIX) is not True
    return ServiceInfo(
        name=name,
        full_name=full_name,
        version=version,
        settings=sendable_object(public_settings(options)),
        metadata=sendable_object(metadata or {}),
        actions=tuple(_describe_actions(actions or {}, full_name, has_service)),
        events=tuple(_describe_events(events or {}, full_name)),
    )


def published(service: ServiceInfo) -> ServiceInfo:
    """The description that others get: without private actions.

    Protected ones are in it, as they are in the original system; others leave them alone.
    """
    shown = (it for it in service.actions if it.visibility is not Visibility.PRIVATE)
    return ServiceInfo(
        name=service.name,
        full_name=service.full_name,
        version=service.version,
        settings=service.settings,
        metadata=service.metadata,
        actions=tuple(shown),
        events=service.events,
    )


def public_settings(settings: Definition) -> dict[str, Any]:
    """The settings without those that `$secureSettings` names, by dotted path, and without it."""
    secure = settings.get(SECURE_SETTINGS, ())
    if not isinstance(secure, list | tuple | set | frozenset):
        raise ConfigError(f"{SECURE_SETTINGS} must be a list of names, not {secure!r}")
    shown = {key: value for key, value in settings.items() if key != SECURE_SETTINGS}
    for path in secure:
        shown = _without_path(shown, str(path))
    return shown


def check_name(name: object, kind: str) -> None:
    """Raise ConfigError unless a name may be given to something here: no spaces, not too long."""
    fault = fault_of_name(name)
    if fault is None and any(it.isspace() or not it.isprintable() for it in str(name)):
        fault = f"{name!r} contains a space or an unprintable character"
    if fault is not None:
        raise ConfigError(f"{kind}: {fault}")


def sendable_object(definition: Definition) -> dict[str, Any]:
    """The part of an object that can be sent: texts, numbers, truth values, lists and objects."""
    kept = _sendable(definition, 0)
    return kept if isinstance(kept, dict) else {}


def _describe_actions(
    actions: Mapping[str, Definition], full_name: str, has_prefix: bool
) -> Iterator[ActionInfo]:
    names: set[str] = set()
    for key, definition in actions.items():
        raw_name = definition.get("name") or key
        check_name(raw_name, f"action of {full_name}")
        name = action_name_of(full_name, raw_name, has_prefix=has_prefix)
        check_name(name, f"action of {full_name}")
        _refuse_twice(name, names, full_name)
        action = ActionInfo(name=name, raw_name=raw_name, definition=_definition(definition))
        if action.visibility is None:
            valid = ", ".join(it.value for it in Visibility)
            raise ConfigError(
                f"action {name}: visibility {definition['visibility']!r} is none of {valid}"
            )
        yield action


def _describe_events(events: Mapping[str, Definition], full_name: str) -> Iterator[EventInfo]:
    names: set[str] = set()
    for key, definition in events.items():
        name, group = definition.get("name") or key, definition.get("group") or ""
        check_name(name, f"event of {full_name}")
        if group:
            check_name(group, f"group of event {name} of {full_name}")
        _refuse_twice(name, names, full_name)
        yield EventInfo(name=name, group=group, definition=_definition(definition, "group"))


def _refuse_twice(name: str, names: set[str], full_name: str) -> None:
    if name in names:
        raise ConfigError(f"service {full_name} has {name!r} twice")
    names.add(name)


def _definition(definition: Definition, *others: str) -> dict[str, Any]:
    kept = sendable_object(definition)
    return {key: kept[key] for key in kept if key not in _NEVER_PUBLISHED and key not in others}


def _without_path(settings: dict[str, Any], path: str) -> dict[str, Any]:
    if path in settings:
        return {key: value for key, value in settings.items() if key != path}
    head, _, rest = path.partition(".")
    inner = settings.get(head)
    if not rest or not isinstance(inner, Mapping):
        return settings
    return {**settings, head: _without_path(dict(inner), rest)}


def _sendable(value: Any, depth: int) -> Any:
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth == _DEPTH_MAX:
        raise ConfigError(f"a definition is nested more than {_DEPTH_MAX} deep, or contains itself")
    if isinstance(value, Mapping):
        items = ((str(key), _sendable(value[key], depth + 1)) for key in value)
        return {key: item for key, item in items if item is not _NOT_SENDABLE}
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        return list(_sendable_items(value, depth))
    return _NOT_SENDABLE


def _sendable_items(values: Iterable[Any], depth: int) -> Iterator[Any]:
    """The items of a list; one that cannot be sent leaves a gap, so that the others keep places."""
    for value in values:
        item = _sendable(value, depth + 1)
        yield None if item is _NOT_SENDABLE else item
