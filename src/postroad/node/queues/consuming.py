"""The decorator of functions that handle durable messages."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, overload

import msgspec

from postroad.core.errors import ConfigError, MalformedPayloadError, Reject, UsageError
from postroad.durable import DurableHandler, Message, RetryPolicy, SyncTransaction, Transaction
from postroad.durable.injection import (
    Injection,
    fill,
    find_injections,
    find_parameters,
    is_async_function,
    name_of,
)
from postroad.durable.store.worker_threads import ThreadRunner
from postroad.durable.transaction import call_in_thread

from .queue import Queue

_MARK = "_postroad_consumers"
_SOURCES = (Message, Transaction, SyncTransaction)
_NAMES = ("Message", "Transaction", "SyncTransaction")
SyncDurableHandler: TypeAlias = Callable[[Message, SyncTransaction], object]
F = TypeVar("F", bound=DurableHandler | SyncDurableHandler)
T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class Consuming(msgspec.Struct, frozen=True, kw_only=True):
    """A function that handles the messages of a queue, and how."""

    queue: str
    handler: DurableHandler
    concurrency: int = 1
    ordered_by_key: bool = True
    retry: RetryPolicy | None = None
    typed: Queue[Any] | None = None
    """The queue, if it was declared with a type."""


class TypedConsumer(Protocol[T]):
    """Marks a function whose first parameter is a value of the queue, or its message."""

    @overload
    def __call__(
        self, handler: Callable[Concatenate[T, P], R], /
    ) -> Callable[Concatenate[T, P], R]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[Message, P], R], /
    ) -> Callable[Concatenate[Message, P], R]: ...


@overload
def consumer(
    queue: str,
    *,
    concurrency: int = 1,
    ordered_by_key: bool = True,
    retry: RetryPolicy | None = None,
) -> Callable[[F], F]: ...
@overload
def consumer(
    queue: Queue[T],
    *,
    concurrency: int = 1,
    ordered_by_key: bool = True,
    retry: RetryPolicy | None = None,
) -> TypedConsumer[T]: ...
def consumer(
    queue: str | Queue[Any],
    *,
    concurrency: int = 1,
    ordered_by_key: bool = True,
    retry: RetryPolicy | None = None,
) -> Any:
    """Have a node call the function for each durable message of a queue.

        @consumer(orders)
        async def bill(order: Order, tx: Transaction) -> None:
            await invoices.send(order, tx=tx)

    With a `Queue` the function gets the decoded value, and what else its annotations ask for: the
    `Transaction` and the `Message`. A message that does not decode becomes a dead letter with the
    reason. With the name of a queue it gets the message and the transaction.

    An `async def` runs on the event loop. A `def`, which may block, runs in a thread, and its
    transaction is a `SyncTransaction`. The message is done with when the function returns, as
    `DurableQueues.consume` tells.
    """

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        consuming = Consuming(
            queue=queue.name if isinstance(queue, Queue) else queue,
            handler=_typed_handler(queue, function) if isinstance(queue, Queue) else function,
            concurrency=concurrency,
            ordered_by_key=ordered_by_key,
            retry=retry,
            typed=queue if isinstance(queue, Queue) else None,
        )
        setattr(function, _MARK, (*consumers_of(function), consuming))
        return function

    return mark


def consumers_of(function: object) -> tuple[Consuming, ...]:
    """What the decorator has left at a function."""
    marks: tuple[Consuming, ...] = getattr(function, _MARK, ())
    return marks


def run_in_threads(handler: DurableHandler, threads: ThreadRunner) -> DurableHandler:
    """A plain function as a handler that does not block the event loop."""

    async def handle(message: Message, tx: Transaction) -> None:
        arguments = (message, SyncTransaction(tx))
        result = await call_in_thread(threads, copy_context(), handler, arguments)
        if inspect.isawaitable(result):
            await result

    return handle


def _typed_handler(queue: Queue[Any], function: Callable[..., Any]) -> DurableHandler:
    """Decode what the function handles, and give it what its annotations ask for."""
    injections, takes_value = _read_parameters(queue, function)
    decode = queue.codec.decode

    @functools.wraps(function)
    def handle(message: Message, tx: Transaction | SyncTransaction) -> Any:
        values: tuple[Any, ...] = ()
        if takes_value:
            try:
                values = (decode(message.body),)
            except MalformedPayloadError as error:
                raise Reject(str(error)) from error
        sources = {Message: message, Transaction: tx, SyncTransaction: tx}
        args, kwargs = fill(injections, sources, values, {})
        return function(*args, **kwargs)

    return handle


def _read_parameters(
    queue: Queue[Any], function: Callable[..., Any]
) -> tuple[list[Injection], bool]:
    """What a function is given besides the value, and whether it takes that.

    Raises:
        ConfigError: a parameter asks for something else, or the types do not agree.
    """
    name = name_of(function)
    parameters = find_parameters(function)
    try:
        injections = find_injections(function, parameters, _source_of, _NAMES)
    except UsageError as error:
        raise ConfigError(str(error)) from None
    sources = {injection.source for injection in injections}
    if SyncTransaction in sources and is_async_function(function):
        raise ConfigError(
            f"{name} is an `async def`, so it cannot ask for a SyncTransaction: annotate the "
            "parameter as Transaction"
        )
    filled = {injection.name for injection in injections}
    others = [each for each in parameters if each.name not in filled and each.default is each.empty]
    for index, parameter in enumerate(others):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(
                f"{name} has the parameter {parameter}, which a consumer is not given"
            )
        hint = parameter.annotation
        if index or (hint is not parameter.empty and hint != queue.codec.kind):
            raise ConfigError(
                f"parameter {parameter} of {name} cannot be filled: a consumer of {queue!r} takes "
                "its value first, then what is annotated as Message or Transaction"
            )
    if not others and Message not in sources:
        raise ConfigError(f"{name} takes neither a value nor a Message of {queue!r}")
    return injections, bool(others)


def _source_of(hint: Any) -> Any:
    return next((source for source in _SOURCES if hint is source), None)
