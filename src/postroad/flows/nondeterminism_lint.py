"""Finds calls in flow code whose result may differ when the code is replayed.

The analysis resolves names to objects: it sees through aliases, and ignores local variables that
only have the name of a module. Names are looked up without running code of the user.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from types import BuiltinMethodType, CodeType
from typing import Any

import msgspec

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

# A name whose value is not known before the code runs.
UNKNOWN = object()

_RANDOM = (
    "betavariate binomialvariate choice choices expovariate gammavariate gauss getrandbits "
    "lognormvariate normalvariate paretovariate randbytes randint random randrange sample seed "
    "shuffle triangular uniform vonmisesvariate weibullvariate Random"
)

_STEP = "do it in a function and `await ctx.step(function)`"

# Replacements, by module and names.
_REPLACEMENTS: dict[str, dict[str, str]] = {
    "use `await ctx.sleep(seconds)`": {"asyncio": "sleep", "time": "sleep"},
    "use `await ctx.select(...)` with `ctx.sleep(seconds)` as one of its branches": {
        "asyncio": "timeout timeout_at wait_for",
    },
    "use `await ctx.gather(...)` for all, or `await ctx.select(...)` for the first": {
        "asyncio": "as_completed wait",
    },
    "use `await ctx.gather(...)`": {
        "asyncio": "Task TaskGroup create_task ensure_future gather shield",
    },
    "use `await ctx.wait_for_signal(name, type)` to wait, `await ctx.gather(...)` within": {
        "asyncio": (
            "Barrier BoundedSemaphore Condition Event Future LifoQueue Lock PriorityQueue Queue "
            "Semaphore"
        ),
    },
    "use `ctx.now()`": {
        "datetime": "date.today datetime.now datetime.utcnow",
        "time": (
            "asctime clock_gettime clock_gettime_ns ctime gmtime localtime monotonic monotonic_ns "
            "perf_counter perf_counter_ns process_time process_time_ns strftime thread_time "
            "thread_time_ns time time_ns"
        ),
    },
    "use `ctx.random()`": {"random": _RANDOM},
    # ctx.random() can be predicted from the flow's seed: it is no source of secrets.
    "let `await ctx.step(function)` call it, which keeps what comes": {
        "os": "getrandom urandom",
        "random": "SystemRandom",
        "secrets": "choice randbelow randbits token_bytes token_hex token_urlsafe",
    },
    "use `ctx.uuid()`": {"uuid": "uuid1 uuid4 uuid6 uuid7"},
    _STEP: {
        "asyncio": (
            "all_tasks create_subprocess_exec create_subprocess_shell current_task get_event_loop "
            "get_running_loop new_event_loop open_connection open_unix_connection run "
            "run_coroutine_threadsafe start_server start_unix_server to_thread wrap_future"
        ),
        "builtins": "input open",
        "concurrent.futures": "ProcessPoolExecutor ThreadPoolExecutor",
        "httpx": "delete get head options patch post put request stream AsyncClient Client",
        "multiprocessing": "Pool Process",
        "os": "fork popen posix_spawn posix_spawnp system",
        "requests": "delete get head options patch post put request Session",
        "socket": "create_connection create_server socket",
        "sqlite3": "connect",
        "subprocess": "Popen call check_call check_output getoutput getstatusoutput run",
        "threading": "Thread Timer",
        "urllib.request": "urlopen urlretrieve",
    },
}
# Attributes that the module creates on first access.
_LAZY = set(_REPLACEMENTS[_STEP]["concurrent.futures"].split())
_MODULES = {module for modules in _REPLACEMENTS.values() for module in modules}

# With this many arguments they do not depend on the clock.
_PURE_WITH = {
    "random.Random": 1,
    "time.asctime": 1,
    "time.ctime": 1,
    "time.gmtime": 1,
    "time.localtime": 1,
    "time.strftime": 2,
}


class NondeterministicCall(msgspec.Struct, frozen=True):
    """A call whose result differs each time, or for which a flow cannot wait."""

    line: int
    """Its line in the file."""
    call: str
    """The full name of the function."""
    advice: str
    """What to use instead."""


def find_nondeterministic_calls(function: Callable[..., Any]) -> list[NondeterministicCall]:
    """Find nondeterministic calls in a flow function, in order; none without its source.

    What is within nested functions counts, unless they are given to `ctx.step`.
    """
    try:
        plain = plain_function(function)
        code: CodeType = plain.__code__
        lines, first_line = inspect.getsourcelines(code)
        definition = find_definition("".join(lines), code.co_name)
        if definition is None:
            return []
        search = _CallFinder(outer_names(plain))
        search.check_function(definition)
        shift = max(first_line, 1) - 1
        findings = (
            NondeterministicCall(line + shift, forbidden.call, forbidden.advice)
            for line, _, forbidden in sorted(search.found)
        )
        return list(dict.fromkeys(findings))
    except Exception:
        # This is advice: an analysis that fails must not keep a flow from starting.
        return []


def format_findings(
    impurities: Iterable[NondeterministicCall], function: Callable[..., Any]
) -> str:
    """Return a text for the author of the function; empty without findings."""
    code = getattr(plain_function(function), "__code__", None)
    file_name = code.co_filename if isinstance(code, CodeType) else "unknown file"
    entries = [
        f"  {file_name}:{impurity.line}: {impurity.call}(): {impurity.advice}"
        for impurity in impurities
    ]
    if not entries:
        return ""
    if not inspect.iscoroutinefunction(function):
        entries = [entry.replace("`await ", "`") for entry in entries]
    name = getattr(function, "__qualname__", None) or repr(function)
    head = f"{name} may not do the same when it is run again after a crash:"
    return "\n".join([head, *entries])


def plain_function(function: Callable[..., Any]) -> Any:
    """Return the function as written, without decorators and bound object."""
    try:
        unwrapped = inspect.unwrap(function)
    except ValueError:  # It wraps itself.
        return function
    return getattr(unwrapped, "__func__", unwrapped)


def find_definition(source: str, name: str) -> _Function | None:
    # A body in a block keeps its indentation, which multi-line strings may rely on.
    is_indented = source[:1].isspace()
    tree = ast.parse(f"if True:\n{source}" if is_indented else source)
    if is_indented:
        ast.increment_lineno(tree, -1)
    for node in ast.walk(tree):
        if isinstance(node, _Function) and node.name == name:
            return node
    return None


# Values of names.


class _ForbiddenCall(msgspec.Struct, frozen=True, order=True):
    """A callable that flow code should not call."""

    call: str
    advice: str


def _forbidden_callables() -> dict[int, _ForbiddenCall]:
    """By identity, and only of modules that are loaded."""
    forbidden: dict[int, _ForbiddenCall] = {}
    for advice, modules in _REPLACEMENTS.items():
        for module_name, paths in modules.items():
            for path in paths.split() if module_name in sys.modules else ():
                target: object = sys.modules[module_name]
                for part in path.split("."):
                    target = member(target, part)
                if target is not UNKNOWN:
                    forbidden.setdefault(
                        id(target), _ForbiddenCall(f"{module_name}.{path}", advice)
                    )
    return forbidden


def member(owner: object, name: str) -> object:
    """Return an attribute of an object, as far as possible without running its code."""
    return inspect.getattr_static(owner, name, UNKNOWN)


def _unbound(value: object) -> object:
    """`datetime.now` is a new object at each access: find the function behind it."""
    if type(value) is BuiltinMethodType and issubclass(type(value.__self__), type):
        return member(value.__self__, value.__name__)
    return value


def outer_names(function: Any) -> list[Mapping[str, object]]:
    """Return the names that a function sees from outside, inner names first."""
    closure: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            closure[name] = cell.cell_contents
        except ValueError:  # It has no value yet.
            closure[name] = UNKNOWN
    return [closure, function.__globals__, vars(builtins)]


def _load_imported(function: _Function) -> None:
    """Import modules of ours that the function imports inside, as it does when it runs."""
    names: set[str] = set()
    attributes: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        if isinstance(node, ast.Attribute):
            attributes.add(node.attr)
    for name in _MODULES & names:
        importlib.import_module(name)
    for name in _LAZY & (names | attributes):
        getattr(importlib.import_module("concurrent.futures"), name, None)


def _module(name: str) -> object:
    return sys.modules.get(name, UNKNOWN)


class Bindings(ast.NodeVisitor):
    """The names that the body of a function or class binds, with their values if known."""

    def __init__(self, body: Iterable[ast.AST], arguments: ast.arguments | None = None) -> None:
        self.names: dict[str, object] = {}
        self._foreign: set[str] = set()
        for argument in _arguments(arguments) if arguments else ():
            self._bind(argument.arg)
        for node in body:
            self.visit(node)
        for name in self._foreign:
            self.names.pop(name, None)

    def _bind(self, name: str | None, value: object = UNKNOWN) -> None:
        if name is not None:
            is_other = self.names.get(name, value) is not value
            self.names[name] = UNKNOWN if is_other else value

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._bind(node.id)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            module = _module(alias.name)
            root = alias.name.partition(".")[0]
            self._bind(alias.asname or root, module if alias.asname else _module(root))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = _module(node.module) if node.module and not node.level else UNKNOWN
        for alias in node.names:
            self._bind(alias.asname or alias.name, member(module, alias.name))

    def _visit_foreign(self, node: ast.Global | ast.Nonlocal) -> None:
        self._foreign.update(node.names)

    visit_Global = visit_Nonlocal = _visit_foreign

    def _visit_inner(self, node: _Function | ast.ClassDef) -> None:
        self._bind(node.name)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _visit_inner

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Skip the body: its names are local to it."""

    def _visit_comprehension(self, node: _Comprehension) -> None:
        for part in ast.walk(node):
            if isinstance(part, ast.NamedExpr):
                self._bind(part.target.id)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def _visit_named(self, node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar) -> None:
        self._bind(node.name)
        self.generic_visit(node)

    visit_ExceptHandler = visit_MatchAs = visit_MatchStar = _visit_named

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self._bind(node.rest)
        self.generic_visit(node)


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (argument for argument in (arguments.vararg, arguments.kwarg) if argument)


class _CallFinder(ast.NodeVisitor):
    """Walks through a function and collects nondeterministic calls by place."""

    def __init__(self, outer: list[Mapping[str, object]]) -> None:
        self.found: list[tuple[int, int, _ForbiddenCall]] = []
        self._known: dict[int, _ForbiddenCall] = {}
        # Names visible at the current node, inner names first.
        self._scopes = outer
        # Functions that run as steps, where everything is allowed: names and lambdas.
        self._steps: set[str | ast.expr] = set()

    def check_function(self, function: _Function) -> None:
        """Visit only the body: defaults and decorators run when the module is loaded."""
        _load_imported(function)
        self._known = _forbidden_callables()
        self._steps = _find_steps(function)
        self._check_body(function.body, Bindings(function.body, function.args).names)

    def _check_body(self, body: Iterable[ast.AST], names: Mapping[str, object]) -> None:
        outside, self._scopes = self._scopes, [names, *self._scopes]
        self._visit_all(body)
        self._scopes = outside

    def visit_Call(self, node: ast.Call) -> None:
        forbidden = self._known.get(id(_unbound(self._resolve(node.func))))
        if forbidden is not None and not _is_pure(forbidden, node):
            self.found.append((node.lineno, node.col_offset, forbidden))
        self.generic_visit(node)

    def _resolve(self, node: ast.expr) -> object:
        if isinstance(node, ast.Name):
            return next((scope[node.id] for scope in self._scopes if node.id in scope), UNKNOWN)
        if isinstance(node, ast.Attribute):
            return member(self._resolve(node.value), node.attr)
        if isinstance(node, ast.Subscript):  # A generic class, as in Queue[int]().
            return self._resolve(node.value)
        return UNKNOWN

    def _visit_function(self, node: _Function) -> None:
        self._visit_all([*node.decorator_list, *_defaults(node.args)])
        if node.name not in self._steps:
            self._check_scope(node.body, Bindings(node.body, node.args).names)

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_function

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all(_defaults(node.args))
        if node not in self._steps:
            self._check_scope([node.body], Bindings([node.body], node.args).names)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all([*node.decorator_list, *node.bases, *node.keywords])
        self._check_body(node.body, _ClassNames(Bindings(node.body).names))

    def _visit_comprehension(self, node: _Comprehension) -> None:
        # The first iterable does not see its names yet.
        self.visit(node.generators[0].iter)
        targets = Bindings(generator.target for generator in node.generators).names
        self._check_scope(_parts(node), targets)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def _check_scope(self, body: Iterable[ast.AST], names: Mapping[str, object]) -> None:
        """Visit a scope, which does not see the names of an enclosing class."""
        outside = self._scopes
        self._scopes = [scope for scope in outside if not isinstance(scope, _ClassNames)]
        self._check_body(body, names)
        self._scopes = outside

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)


class _ClassNames(dict[str, object]):
    """Names of a class body, which its methods do not see."""


def _parts(node: _Comprehension) -> Iterator[ast.expr]:
    """Return the expressions of a comprehension that are evaluated repeatedly."""
    yield from (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
    for generator in node.generators:
        yield generator.iter
        yield from generator.ifs


def _defaults(arguments: ast.arguments) -> list[ast.expr]:
    return [*arguments.defaults, *(default for default in arguments.kw_defaults if default)]


def _find_steps(function: _Function) -> set[str | ast.expr]:
    """Return the arguments of `ctx.step`: names of functions, and lambdas, also by name."""
    steps: set[str | ast.expr] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            # Also functools.partial(ctx.step, function).
            for called, step in pairwise([node.func, *node.args]):
                if _is_step(called):
                    steps.add(step.id if isinstance(step, ast.Name) else step)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if names & steps:
                steps.add(node.value)
    return steps


def _is_step(called: ast.expr) -> bool:
    """Whether a call is `ctx.step` or `ctx.step.with_options(...)`."""
    if isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute):
        return called.func.attr == "with_options" and _is_step(called.func.value)
    return isinstance(called, ast.Attribute) and called.attr == "step"


def _is_pure(forbidden: _ForbiddenCall, node: ast.Call) -> bool:
    """Whether a call has all needed arguments; starred arguments may have them."""
    needed = _PURE_WITH.get(forbidden.call)
    arguments = [*node.args, *node.keywords]
    has_star = any(isinstance(argument, ast.Starred) for argument in node.args)
    return needed is not None and (has_star or len(arguments) >= needed)
