"""Functions of a job: found by their import paths, called with one segment, never trusted."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from postroad.core.errors import ConfigError
from postroad.pipeline.job import Segment

Function = Callable[..., Any]


def import_object(path: str) -> Any:
    """The object at an import path; raises ConfigError that says which part is missing."""
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"{path!r} is not an import path; write package.module:name")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{path!r} cannot be imported here: {error}") from error
    except Exception as error:
        raise ConfigError(f"importing {module_name!r} for {path!r} failed: {error!r}") from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError(_not_found(path, part, found)) from None
    return found


def _not_found(path: str, part: str, holder: object) -> str:
    near = difflib.get_close_matches(part, dir(holder), 1)
    advice = f"; did you mean {near[0]!r}?" if near else ""
    return f"{path!r}: there is no {part!r} in it{advice}"


def import_function(path: str) -> Function:
    """The function at an import path; raises ConfigError if it is something else."""
    found = import_object(path)
    if not callable(found):
        raise ConfigError(f"{path!r} is not a function but {type(found).__name__}")
    function: Function = found
    return function


class InvalidResultError(TypeError):
    """A function returned something else than segments."""


def normalize_result(result: object) -> list[Segment]:
    """A function's result as a list of segments; raises InvalidResultError if it is none."""
    if result is None:
        return []
    if isinstance(result, dict):
        return [result]
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
        raise InvalidResultError(f"a function returns segments, not {type(result).__name__}")
    segments = list(result)
    for segment in segments:
        if not isinstance(segment, dict):
            raise InvalidResultError(
                f"a function returns segments, not a list of {type(segment).__name__}"
            )
    return segments
