"""What the actions of a service take, as JSON Schema: from their schemas, or from type hints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from postroad.core.errors import ConfigError
from postroad.core.json_schema import json_schema

from .describing import NO_SERVICE_NAME_PREFIX
from .method_params import MethodHandler
from .params_json import JsonSchema, json_schema_of
from .schema import action_name_of
from .service import ActionOptions, Service, actions_of
from .told_schemas import KEY


def action_schemas(service: Service) -> dict[str, JsonSchema]:
    """The schemas of the params of a service that runs, by the full names of its actions.

    Actions that take no params, or say nothing of them, are not in it.
    """
    found: dict[str, JsonSchema] = {}
    has_prefix = service.settings.get(NO_SERVICE_NAME_PREFIX) is not True
    for raw_name, method, options in actions_of(service):
        name = action_name_of(service.full_name, raw_name, has_prefix=has_prefix)
        schema = hinted_schema(method, options, name) or described(options.params)
        if schema is not None:
            found[name] = schema
    return found


def hinted_schema(
    method: Callable[..., Any], options: ActionOptions, place: str
) -> JsonSchema | None:
    """The schema of params that a method checks by type hints; None if it does not."""
    type = MethodHandler(method, options.params, place=place).type
    return None if type is None else json_schema(type)


def told(definition: Mapping[str, Any]) -> JsonSchema | None:
    """The schema of an action's params, as its node describes it; None if nothing is said."""
    schema: JsonSchema | None = definition.get(KEY)
    return schema or described(definition.get("params"))


def described(params: Any) -> JsonSchema | None:
    """The schema of params in the notation of the original system; None if it is none."""
    if not isinstance(params, dict | list):
        return None
    try:
        return json_schema_of(params)
    except ConfigError:
        # It was written for a validator of its own.
        return None
