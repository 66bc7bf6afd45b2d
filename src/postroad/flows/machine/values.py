"""Encodes values and errors for the history and back: code always gets what replay will give it."""

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
# The order of a set differs between processes.
_digest_encoder = msgspec.msgpack.Encoder(order="deterministic")
_DIGEST_BYTES = 8
_TEXT_CHARS_MAX = 2_000
# An error with larger arguments is restored from its text.
_ARGS_BYTES_MAX = 64 * KIB
# Values of these types do not change when they are encoded and decoded.
_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


def encode_value(value: Any, what: str) -> bytes:
    """Encode a value; `what` names it in the error if that is impossible."""
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
    """Decode a value as a type.

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
    """Return why an encoded value is not of a type; None if it is, or no decoder knows the type."""
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
    """Return the decoder of a type."""
    try:
        return _decoder(type)
    except TypeError as error:
        raise SerializationError(f"no value can be read as {type!r}: {error}") from None


def roundtrip(value: Any, encoded: bytes, type: Any) -> Any:
    """Return what replay will decode from a value that was just encoded."""
    kind = value.__class__
    if kind in _PLAIN and (type is Any or type is kind):
        return value
    return decode_value(encoded, type)


def digest(*parts: bytes) -> bytes:
    """Return a short hash of values."""
    hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        hashed.update(part)
    return hashed.digest()


def digest_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return a hash of arguments; empty if they cannot be encoded."""
    if not args and not kwargs:
        return b""
    try:
        return digest(_digest_encoder.encode((args, kwargs)))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return b""


def result_type(function: Callable[..., Any]) -> Any:
    """Return the annotated result type of a function; Any if there is none that can be decoded."""
    try:
        return _result_type(function)
    except TypeError:
        # A callable that is not hashable.
        return _result_type.__wrapped__(function)


@functools.lru_cache(maxsize=4096)
def _result_type(function: Callable[..., Any]) -> Any:
    try:
        hint = get_type_hints(function).get("return", Any)
        if isinstance(msgspec.inspect.type_info(hint), msgspec.inspect.CustomType):
            return Any
        value_decoder(hint)
    except Exception:
        # Annotations may use names that exist for type checkers only.
        return Any
    return hint


# Errors.


class RecordedError(msgspec.Struct, frozen=True, array_like=True):
    """An error as it is recorded."""

    kind: str
    """Module and name of its class."""
    text: str
    args: bytes | None = None
    """Its encoded arguments; None if they cannot be encoded."""


def shorten_error(error: RecordedError, size: int) -> RecordedError:
    """Return an error of at most about `size` bytes: without its arguments, or with less text."""
    if 4 * len(error.text) + len(error.args or b"") <= size:
        return error
    return RecordedError(error.kind, error.text[: size // 4])


def record_error(error: BaseException) -> RecordedError:
    """Return an error as it is recorded."""
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
    """Return the text of an error, also if its `str` raises."""
    try:
        text = str(error)
    except Exception as problem:
        text = f"it cannot tell what it is: {type(problem).__name__}"
    return sanitize_text(text[:_TEXT_CHARS_MAX])


def sanitize_text(text: str) -> str:
    """Return a text without characters that cannot be encoded."""
    return text.encode("utf-8", "replace").decode()


def _import(module: str) -> Any:
    """Import a module, which a new process may not have done yet; None if that fails."""
    try:
        return importlib.import_module(module)
    except Exception:
        return None


def restore_error(failure: RecordedError, *, may_import: bool = True) -> Exception:
    """Return the error that was recorded.

    If its class cannot be restored, that is a StepFailedError, or a FlowError if it was one.

    Args:
        failure: the recorded error.
        may_import: whether its module may be imported; not for errors that another process sent.
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
        # A FlowError fails the flow, which matters more than its class.
        return FlowError(failure.text)
    return StepFailedError(failure.text, failure.kind)
