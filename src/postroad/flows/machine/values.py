"""Values on their way into records and back: what code sees is always what was recorded."""

from __future__ import annotations

import functools
import hashlib
import importlib
import sys
from collections.abc import Callable
from typing import Any, cast, get_type_hints

import msgspec

from postroad.core.limits import KIB, MIB
from postroad.flows.errors import FlowError, SerializationError, StepFailedError
from postroad.flows.machine.renamed_errors import RENAMED_ERRORS

# Result of a step, argument and result of a flow, value of a signal. Each is held in memory and
# read at every restart; larger values belong in a file or a table.
FLOW_VALUE_BYTES_MAX = 16 * MIB

_encoder = msgspec.msgpack.Encoder()
# The order of a set is another one in every process.
_digest_encoder = msgspec.msgpack.Encoder(order="deterministic")
_DIGEST_BYTES = 8
_TEXT_CHARS_MAX = 2_000
# An error that was made with more than this is restored from its text.
_ARGS_BYTES_MAX = 64 * KIB
# Values of these types are the same before and after.
_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


def encode_value(value: Any, what: str) -> bytes:
    """A value as bytes; `what` names it if that is impossible."""
    try:
        encoded = _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise SerializationError(
            f"{what} cannot be serialized: {error}. Give plain values, dataclasses or "
            "msgspec structs, and leave open files, connections and the like inside steps"
        ) from None
    if len(encoded) > FLOW_VALUE_BYTES_MAX:
        raise SerializationError(
            f"{what} takes {len(encoded)} bytes, and {FLOW_VALUE_BYTES_MAX} is the limit: "
            "keep it in a file, an object store or a table, and give its name"
        )
    return encoded


def decode_value(encoded: bytes, type: Any = Any) -> Any:
    """The value that was encoded, as that type.

    Raises:
        msgspec.ValidationError: it is of another type.
    """
    return value_decoder(type).decode(encoded)


def decode_result(encoded: bytes, type: Any = Any) -> Any:
    """Decode the result of a flow; untyped if the flow was of a version with another type."""
    try:
        return decode_value(encoded, type)
    except msgspec.ValidationError:
        return decode_value(encoded)


def type_mismatch(encoded: bytes, type: Any) -> str | None:
    """Why an encoded value is not of a type; None if it is, or nobody can tell."""
    try:
        decode_value(encoded, type)
    except SerializationError:
        return None
    except Exception as error:
        return str(error)
    return None


@functools.lru_cache(maxsize=1024)
def _decoder(type: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(type)


def value_decoder(type: Any) -> msgspec.msgpack.Decoder[Any]:
    """What reads values of a type."""
    try:
        return _decoder(type)
    except TypeError as error:
        raise SerializationError(f"no value can be read as {type!r}: {error}") from None


def roundtrip(value: Any, encoded: bytes, type: Any) -> Any:
    """What is read back of a value that was just encoded."""
    kind = value.__class__
    if kind in _PLAIN and (type is Any or type is kind):
        return value
    return decode_value(encoded, type)


def digest(*parts: bytes) -> bytes:
    """A few bytes that tell values apart."""
    hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        hashed.update(part)
    return hashed.digest()


def digest_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Tells arguments apart; empty if they are of a kind that cannot be compared later."""
    if not args and not kwargs:
        return b""
    try:
        return digest(_digest_encoder.encode((args, kwargs)))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return b""


def result_type(function: Callable[..., Any]) -> Any:
    """What a function says it returns; anything if it does not say, or nothing readable."""
    try:
        return _result_type(function)
    except TypeError:
        # An object that can be called, and cannot be a key.
        return _result_type.__wrapped__(function)


@functools.lru_cache(maxsize=4096)
def _result_type(function: Callable[..., Any]) -> Any:
    try:
        hint = get_type_hints(function).get("return", Any)
        if isinstance(msgspec.inspect.type_info(hint), msgspec.inspect.CustomType):
            return Any
        value_decoder(hint)
    except Exception:
        # Annotations may name what exists for type checkers only.
        return Any
    return hint


# Errors.


class RecordedError(msgspec.Struct, frozen=True, array_like=True):
    """An error as it is recorded."""

    kind: str
    """Module and name of its class."""
    text: str
    args: bytes | None = None
    """What it was made with, where that can be recorded."""


def record_error(error: BaseException) -> RecordedError:
    """An error as it is recorded."""
    kind = type(error)
    args: bytes | None
    try:
        args = _encoder.encode(list(error.args))
    except Exception:
        args = None
    if args is not None and len(args) > _ARGS_BYTES_MAX:
        args = None
    return RecordedError(f"{kind.__module__}:{kind.__qualname__}", _text_of(error), args)


def _text_of(error: BaseException) -> str:
    """What an error says, as far as it can be said and recorded."""
    try:
        text = str(error)
    except Exception as problem:
        text = f"it cannot tell what it is: {type(problem).__name__}"
    return sanitize_text(text[:_TEXT_CHARS_MAX])


def sanitize_text(text: str) -> str:
    """A text that can be recorded, whatever it is made of."""
    return text.encode("utf-8", "replace").decode()


def _import(module: str) -> Any:
    """A module, or None; a process that is new may not have come to where it is imported."""
    try:
        return importlib.import_module(module)
    except Exception:
        return None


def restore_error(failure: RecordedError, *, may_import: bool = True) -> Exception:
    """The error that was recorded.

    Where its class cannot be restored it is StepFailedError, or FlowError if it was one.

    Args:
        failure: what was recorded.
        may_import: whether its module is imported; if not, only one that is loaded counts, as for
            what another process says.
    """
    module, _, name = RENAMED_ERRORS.get(failure.kind, failure.kind).partition(":")
    error_type: Any = _import(module) if may_import else sys.modules.get(module)
    for part in name.split("."):
        error_type = getattr(error_type, part, None)
    is_exception = isinstance(error_type, type) and issubclass(error_type, Exception)
    if is_exception and failure.args is not None:
        try:
            restored: Any = error_type(*decode_value(failure.args))
        except Exception:
            restored = None
        if type(restored) is error_type and _text_of(restored) == failure.text:
            return cast(Exception, restored)
    if is_exception and issubclass(error_type, FlowError):
        # What it means for the flow matters more than its class.
        return FlowError(failure.text)
    return StepFailedError(failure.text, failure.kind)
