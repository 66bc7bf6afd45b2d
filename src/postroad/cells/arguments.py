"""The words after a command, as arguments of the method that runs it."""

from __future__ import annotations

import difflib
import inspect
import keyword
import math
from collections.abc import Callable
from typing import Any, TypeAlias

from postroad.core.errors import ConfigError

from .layout import one_line
from .path import CellPath

_SHOWN_CHARACTERS_MAX = 60
_TIMEOUT_MAX_S = 60.0

_Parameters: TypeAlias = dict[str, inspect.Parameter]


def bind_arguments(
    method: Callable[..., Any], words: list[str]
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments for a method; raises ConfigError if they do not fit."""
    parameters = inspect.signature(method).parameters
    named = {
        _option_name(name): it for name, it in parameters.items() if it.kind is it.KEYWORD_ONLY
    }
    plain, options = _sort_words(words, named)
    places = [it for it in parameters.values() if it.kind is not it.KEYWORD_ONLY]
    return _bind_plain(places, plain), options


def quote(text: str) -> str:
    """What somebody wrote, for an error: printable and not too long."""
    return repr(one_line(text, _SHOWN_CHARACTERS_MAX))


def parse_path(text: str) -> CellPath:
    """A path that leads somewhere; raises ConfigError if it is none."""
    path = CellPath.parse(text)
    if not path:
        raise ConfigError("PATH is empty; write cell@domain, or a name")
    return path


def check_seconds(timeout_s: float) -> None:
    """Refuse a time nobody would wait for; raises ConfigError."""
    if not 0 < timeout_s <= _TIMEOUT_MAX_S:
        raise ConfigError(
            f"-timeout={timeout_s:g} must be above 0 and at most {_TIMEOUT_MAX_S:g} seconds"
        )


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Refuse a number that is too small or too large; raises ConfigError."""
    if not least <= value <= most:
        raise ConfigError(f"{name}={one_line(value, 20)} must be {least} to {most}")


def _option_name(parameter: str) -> str:
    """`from_` is written `-from`: Python keeps the word for itself."""
    bare = parameter.removesuffix("_")
    return bare if keyword.iskeyword(bare) else parameter


def _sort_words(words: list[str], named: _Parameters) -> tuple[list[str], dict[str, Any]]:
    plain: list[str] = []
    options: dict[str, Any] = {}
    for place, word in enumerate(words):
        if word == "--":
            return plain + words[place + 1 :], options
        if word.startswith("-") and len(word) > 1:
            _add_option(word, named, options)
        else:
            plain.append(word)
    return plain, options


def _add_option(word: str, named: _Parameters, options: dict[str, Any]) -> None:
    name, equals, value = word.lstrip("-").partition("=")
    if not name:
        raise ConfigError(f"option {quote(word)} has no name")
    parameter = named.get(name)
    if parameter is None:
        raise ConfigError(_no_option(name, list(named)))
    if parameter.name in options:
        raise ConfigError(f"option -{name} is given twice")
    is_flag = _kind_of(parameter) == "bool"
    if is_flag and equals:
        raise ConfigError(f"option -{name} takes no value")
    if not is_flag and not value:
        raise ConfigError(f"option -{name} needs a value: -{name}=...")
    options[parameter.name] = True if is_flag else _convert(f"-{name}", parameter, value)


def _no_option(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name[:_SHOWN_CHARACTERS_MAX], known, n=1, cutoff=0.5)
    hint = f", did you mean -{near[0]}?" if near else ""
    return f"no option {quote('-' + name)}{hint}"


def _bind_plain(places: list[inspect.Parameter], words: list[str]) -> list[Any]:
    takes_more = bool(places) and places[-1].kind is inspect.Parameter.VAR_POSITIONAL
    single = places[:-1] if takes_more else places
    if len(words) > len(single) and not takes_more:
        raise ConfigError(f"{quote(words[len(single)])} is too much")
    missing = [it for it in single[len(words) :] if it.default is it.empty]
    if missing:
        raise ConfigError(f"{missing[0].name.upper()} is missing")
    bound = [_convert(it.name.upper(), it, word) for it, word in zip(single, words, strict=False)]
    return bound + words[len(single) :]


def _kind_of(parameter: inspect.Parameter) -> str:
    """Its type without `None`, as it is written; annotations may be types or their texts."""
    annotation = parameter.annotation
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return text.removesuffix(" | None")


def _convert(name: str, parameter: inspect.Parameter, word: str) -> Any:
    reader, what = _READERS.get(_kind_of(parameter), (str, "a text"))
    try:
        return reader(word)
    except ValueError:
        raise ConfigError(f"{name} must be {what}, not {quote(word)}") from None


def _finite(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(word)
    return number


_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "float": (_finite, "a number"),
    "int": (int, "a whole number"),
}
