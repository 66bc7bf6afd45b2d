"""Bodies of messages as values of a Python type: JSON by msgspec, or by pydantic for its models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, is_typeddict

import msgspec

from postroad.core.errors import ConfigError, MalformedPayloadError, UsageError
from postroad.core.json_schema import make_json_schema

T = TypeVar("T")

_VALUE_CHARS_MAX = 200
# Of one value; pydantic finds all of them.
_PROBLEMS_MAX = 3


class Codec(Generic[T]):
    """Encodes and decodes the values of one type.

    Takes msgspec structs, dataclasses, TypedDicts, NamedTuples, pydantic models and all else that
    msgspec can decode. With the type `bytes` the body is the value, as it is.

    Raises:
        ConfigError: the type cannot be decoded from JSON.
    """

    __slots__ = ("_class", "_decode", "_encode", "kind")

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        # None where values have no class of their own to compare with; decoding checks them.
        self._class = kind if _has_instances(kind) else None
        self._encode: Callable[[Any], bytes]
        self._decode: Callable[[bytes], Any]
        if kind is bytes:
            self._encode, self._decode = _check_bytes, bytes
        elif _is_pydantic_model(kind):
            model: Any = kind
            self._encode = lambda value: value.model_dump_json().encode()
            self._decode = model.model_validate_json
        else:
            self._encode = msgspec.json.Encoder().encode
            try:
                self._decode = msgspec.json.Decoder(kind).decode
            except TypeError as error:
                raise ConfigError(
                    f"{type_name(kind)} cannot be the type of messages: {error}"
                ) from error

    def encode(self, value: T) -> bytes:
        """The body of a value, which is checked against the type by decoding it again.

        Raises:
            UsageError: the value is not of this type, or cannot be encoded.
        """
        kind = self.kind
        if self._class is not None and not isinstance(value, self._class):
            raise UsageError(
                f"expected {type_name(kind)}, got {type_name(type(value))}: {_shorten(value)}"
            )
        try:
            body = self._encode(value)
        except UsageError:
            raise
        except Exception as error:
            # Whatever a custom encoder raises concerns the one who sends this value.
            raise UsageError(
                f"{type_name(kind)} cannot be encoded: {type(error).__name__}: {error}"
            ) from error
        try:
            self._decode(body)
        except Exception as error:
            # Structs do not check what they are made of; the consumer would.
            raise UsageError(
                f"this is no valid {type_name(kind)}: {_explain(error)}: {_shorten(value)}"
            ) from error
        return body

    def decode(self, body: bytes) -> T:
        """The value of a body.

        Raises:
            MalformedPayloadError: it does not fit the type; the text says why and at which place.
        """
        try:
            value: T = self._decode(body)
        except Exception as error:
            # Validators of models may raise anything.
            raise MalformedPayloadError(
                f"the body does not decode as {type_name(self.kind)}: {_explain(error)}"
            ) from error
        return value

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the type; empty for raw bytes.

        Raises:
            ConfigError: a part of the type has no schema.
        """
        kind: Any = self.kind
        if kind is bytes:
            return {}
        try:
            if _is_pydantic_model(kind):
                model_schema: dict[str, Any] = kind.model_json_schema()
                return model_schema
            return make_json_schema(kind)
        except Exception as error:
            raise ConfigError(f"{type_name(kind)} has no JSON Schema: {error}") from error


def type_name(kind: object) -> str:
    """How people write a type."""
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


def _has_instances(kind: object) -> bool:
    return isinstance(kind, type) and kind.__module__ != "builtins" and not is_typeddict(kind)


def _is_pydantic_model(kind: object) -> bool:
    # A model can only exist if its library is loaded, which takes longer than all of Postroad.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def _check_bytes(value: object) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise UsageError(f"expected bytes, got {type_name(type(value))}: {_shorten(value)}")
    return bytes(value)


def _explain(error: Exception) -> str:
    """The reason with the place in the value, on one line."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(error, pydantic.ValidationError):
        # Its text spans lines and names a page of its own.
        problems: Any = error.errors(include_url=False, include_context=False, include_input=False)
        texts = [f"{it['msg']} - at `{_place(it['loc'])}`" for it in problems[:_PROBLEMS_MAX]]
        if len(problems) > _PROBLEMS_MAX:
            texts.append(f"and {len(problems) - _PROBLEMS_MAX} more")
        return "; ".join(texts)
    if isinstance(error, msgspec.MsgspecError):
        return str(error)
    # Of a validator.
    return f"{type(error).__name__}: {error}"


def _place(keys: Iterable[str | int]) -> str:
    return "$" + "".join([f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys])


def _shorten(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:
        text = f"<its repr raises {type(error).__name__}>"
    return text if len(text) <= _VALUE_CHARS_MAX else f"{text[:_VALUE_CHARS_MAX]}..."
