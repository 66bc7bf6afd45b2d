"""Finds the signals that the code of a flow can wait for, by its source.

A signal that the code never waits for is a mistake of its sender, and so is a value of another
type: both can be rejected before they are stored. The analysis succeeds if the flow context is
only used for its own methods, subflows, and functions that can be analyzed too.
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from postroad.flows.nondeterminism_lint import (
    UNKNOWN,
    Bindings,
    find_definition,
    member,
    outer_names,
)

Signals = dict[str, list[Any]]
"""The types of the awaited signals, by name."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_TYPE_NODES = (
    ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.BitOr, ast.Tuple, ast.List, ast.Constant,
    ast.Load,
)  # fmt: skip
# They look at an object, and keep nothing of it.
_HARMLESS = (print, repr, str, id, type, isinstance)
_DEPTH_MAX = 20


class _Undecidable(Exception):
    """The source is not known or not clear."""


def find_signals(function: Callable[..., Any]) -> Signals | None:
    """Return the signals that code waits for; None if they cannot be determined."""
    search = _SignalFinder()
    try:
        search.follow_function(function, 0)
    except Exception:
        # A function that cannot be analyzed accepts all signals.
        return None
    return search.signals


class _SignalFinder:
    """Follows the flow context through functions."""

    def __init__(self) -> None:
        self.signals: Signals = {}
        self._reported: set[tuple[object, int | str]] = set()
        self._depth = 0

    def follow_function(self, function: object, parameter: int | str) -> None:
        """Analyze what a function does with the context that it gets as a parameter."""
        if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
            raise _Undecidable
        if (function, parameter) in self._reported:
            return
        self._reported.add((function, parameter))
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise _Undecidable
        code = function.__code__
        lines, _ = inspect.getsourcelines(code)
        definition = find_definition("".join(lines), code.co_name)
        if definition is None:
            raise _Undecidable
        names = Bindings(definition.body, definition.args).names
        _FunctionBody(self, definition, [names, *outer_names(function)]).follow(parameter)


class _FunctionBody:
    """The body of one function."""

    def __init__(
        self, search: _SignalFinder, node: _Function, scopes: list[Mapping[str, object]]
    ) -> None:
        self._search = search
        self._node = node
        self._scopes = scopes
        self._parents = {
            child: parent
            for statement in node.body
            for parent in ast.walk(statement)
            for child in ast.iter_child_nodes(parent)
        }

    def follow(self, parameter: int | str) -> None:
        name = _parameter(self._node.args, parameter)
        for statement in self._node.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.arg) and node.arg == name:
                    # An inner function has a parameter of that name, which may be anything.
                    raise _Undecidable
                if isinstance(node, ast.Name) and node.id == name:
                    self._on_use(node)

    def _on_use(self, node: ast.Name) -> None:
        parent = self._parents.get(node)
        if isinstance(parent, ast.Attribute) and isinstance(parent.ctx, ast.Load):
            if parent.attr in ("wait_for_signal", "run_subflow"):
                self._on_method(parent)
        elif isinstance(parent, ast.Call):
            self._on_argument(parent, parent.args.index(node))
        elif isinstance(parent, ast.keyword) and parent.arg is not None:
            call = self._parents.get(parent)
            if not isinstance(call, ast.Call):
                raise _Undecidable
            self._on_argument(call, parent.arg)
        else:
            raise _Undecidable

    def _on_method(self, method: ast.Attribute) -> None:
        call = self._parents.get(method)
        if not isinstance(call, ast.Call):
            raise _Undecidable
        # Also functools.partial(ctx.wait_for_signal, name, type), a branch of a `def`.
        shift = int(method in call.args[:1] and self._resolve(call.func) is functools.partial)
        if not shift and call.func is not method:
            raise _Undecidable
        if method.attr == "run_subflow":
            definition = self._resolve(_argument(call, shift, "definition"))
            self._search.follow_function(_function_of(definition), 0)
            return
        name = self._resolve(_argument(call, shift, "name"))
        if not isinstance(name, str):
            raise _Undecidable
        signal_type = self._type(_argument(call, shift + 1, "type"))
        self._search.signals.setdefault(name, []).append(signal_type)

    def _on_argument(self, call: ast.Call, place: int | str) -> None:
        """The context is passed to a function."""
        if any(isinstance(argument, ast.Starred) for argument in call.args):
            raise _Undecidable
        target = self._resolve(call.func)
        if target in _HARMLESS:
            return
        if getattr(target, "function", None) is not None:
            # A flow that is awaited as part of this one.
            target = _function_of(target)
        self._search.follow_function(target, place)

    def _resolve(self, node: ast.expr) -> object:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return next((scope[node.id] for scope in self._scopes if node.id in scope), UNKNOWN)
        if isinstance(node, ast.Attribute):
            return member(self._resolve(node.value), node.attr)
        return UNKNOWN

    def _type(self, node: ast.expr) -> Any:
        """Return the type of a type expression; Any if it cannot be determined."""
        for part in ast.walk(node):
            if not isinstance(part, _TYPE_NODES):
                return Any
            if isinstance(part, ast.Name) and self._resolve(part) is UNKNOWN:
                return Any
        names: dict[str, object] = {}
        for scope in reversed(self._scopes):
            names.update(scope)
        expression = ast.fix_missing_locations(ast.Expression(node))
        return eval(compile(expression, "<signal>", "eval"), names)


def _function_of(definition: object) -> object:
    function = getattr(definition, "function", None)
    if getattr(definition, "__wrapped__", None) is not function:
        raise _Undecidable
    return function


def _parameter(arguments: ast.arguments, place: int | str) -> str:
    """Return the name of a parameter that can be passed by position or name."""
    if isinstance(place, int):
        by_place = [*arguments.posonlyargs, *arguments.args]
        if place >= len(by_place):
            raise _Undecidable
        return by_place[place].arg
    if place not in {parameter.arg for parameter in (*arguments.args, *arguments.kwonlyargs)}:
        raise _Undecidable
    return place


def _argument(call: ast.Call, place: int, name: str) -> ast.expr:
    by_name = {keyword.arg: keyword.value for keyword in call.keywords}
    argument = call.args[place] if len(call.args) > place else by_name.get(name)
    if argument is None or isinstance(argument, ast.Starred):
        raise _Undecidable
    return argument
