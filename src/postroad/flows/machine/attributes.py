"""Search attributes: what a flow says about itself, and what operators find it by. Pure."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from postroad.core.errors import ConfigError, UsageError
from postroad.core.limits import KIB
from postroad.flows.machine.values import sanitize_text

AttributeValue = str | int | float | bool
"""The value of a search attribute."""

ATTRIBUTES_MAX = 20
ATTRIBUTE_CHARS_MAX = 200
ATTRIBUTES_BYTES_MAX = 4 * KIB

_SHOWN_CHARS = 80
_NAME = re.compile(r"[^\W\d][\w.-]{0,63}")
_CONDITION = re.compile(r"\s*([^\s=!<>]+)\s*(!=|<=|>=|=|<|>)(?![=<>])(.*)", re.DOTALL)
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def merge_attributes(
    attributes: Mapping[str, AttributeValue], changes: Mapping[str, AttributeValue | None]
) -> dict[str, AttributeValue]:
    """Return attributes with changes; raises UsageError if they are not valid or too large."""
    merged = dict(attributes)
    for name, value in changes.items():
        if _NAME.fullmatch(name) is None:
            raise UsageError(
                f"cannot set attribute {name[:_SHOWN_CHARS]!r}: a name has up to 64 "
                "letters, digits, '_', '.' and '-', and starts with a letter or '_'"
            )
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _check_value(name, value)
    names = ", ".join(changes)[:_SHOWN_CHARS]
    if len(merged) > ATTRIBUTES_MAX:
        raise UsageError(
            f"cannot set attributes {names}: the flow would have {len(merged)}, and "
            f"{ATTRIBUTES_MAX} is the limit; remove others by setting them to None"
        )
    size = len(msgspec.msgpack.encode(merged))
    if size > ATTRIBUTES_BYTES_MAX:
        raise UsageError(
            f"cannot set attributes {names}: all of the flow would take {size} bytes, and "
            f"{ATTRIBUTES_BYTES_MAX} is the limit; shorten them, or remove others"
        )
    return merged


def _check_value(name: str, value: AttributeValue) -> AttributeValue:
    if type(value) not in (str, int, float, bool):
        problem = "is no str, int, float, bool or None"
    elif isinstance(value, str):
        if len(value) <= ATTRIBUTE_CHARS_MAX:
            return sanitize_text(value)
        problem = f"has {len(value)} characters, and {ATTRIBUTE_CHARS_MAX} is the limit"
    elif isinstance(value, int):
        if -(1 << 63) <= value < 1 << 63:
            return value
        problem = "does not fit in 64 bits; give it as a text"
    elif math.isfinite(value):
        return value
    else:
        problem = "is no finite number"
    raise UsageError(f"cannot set attribute {name!r}: {repr(value)[:_SHOWN_CHARS]} {problem}")


class Condition(msgspec.Struct, frozen=True):
    """What an attribute of a flow is compared with."""

    name: str
    operator: str
    text: str
    """Compared with texts."""
    value: Any
    """Compared with numbers and bools; None for an attribute that is not set."""

    def matches(self, attributes: Mapping[str, AttributeValue]) -> bool:
        """Whether a flow with these attributes meets it; another type is not equal."""
        value = attributes.get(self.name)
        operand: Any = (
            self.text if isinstance(value, str) and self.value is not None else self.value
        )
        compare = _COMPARISONS[self.operator]
        is_same_type = isinstance(value, bool) == isinstance(operand, bool)
        if compare is operator.eq:
            return (is_same_type and value == operand) == (self.operator == "=")
        if value is None or isinstance(value, bool) or not is_same_type:
            return False
        return isinstance(value, str) == isinstance(operand, str) and compare(value, operand)


def parse_conditions(texts: Sequence[str]) -> list[Condition]:
    """Parse conditions such as `amount>=5`; raises ConfigError if one is malformed."""
    return [_parse_condition(text) for text in texts]


def _parse_condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None or _NAME.fullmatch(match[1]) is None:
        raise ConfigError(
            f"where={text!r} must be a name, one of = != < <= > >= and a value, as in "
            "customer=ann or 'amount>=5'"
        )
    name, sign, operand = match[1], match[2], match[3].strip()
    try:
        value = msgspec.json.decode(operand.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        value = operand
    if isinstance(value, list | dict):
        value = operand
    if value in (None, "") and sign not in ("=", "!="):
        raise ConfigError(
            f"where={text!r}: nothing is less or more than {operand or 'an empty text'}; "
            f"compare with = or !=, as in {name}!=null for flows that have this attribute"
        )
    return Condition(name, sign, value if isinstance(value, str) else operand, value)
