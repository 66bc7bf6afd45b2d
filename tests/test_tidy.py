"""The size, naming and completeness rules that no linter knows.

Every rule reads one file and yields a sentence for each breach, so that one run shows all of them.
"""

import ast
import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.source_tree import (
    PACKAGE,
    code_files,
    module_name,
    package_files,
    relative,
    syntax_tree,
    text_files,
)

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
GENERIC_NAMES = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}

# Packages whose words are those of docs/glossary.md.
PLAIN_SPOKEN = ("core", "wire", "net", "cluster", "cells", "durable", "flows", "testing")
# Tests and their support, by the beginnings of their paths, whose variables say what they hold.
PLAIN_SPOKEN_TESTS = (
    *("contract/test_transports", "contract/transport_ends"),
    *("integration/cells", "integration/cluster", "integration/durable", "integration/flows"),
    *("integration/net", "integration/test_"),
    *("property/test_cells", "property/test_membership", "property/test_wire"),
    *("simulation", "support/cells", "support/cluster", "support/durable", "support/flows"),
    *("support/net", "support/wire", "unit/cells", "unit/cluster", "unit/core", "unit/durable"),
    *("unit/flows", "unit/net", "unit/testing", "unit/wire"),
)
# Variables that say nothing of what they hold.
EMPTY_NAMES = {
    *("asked", "found", "given", "heard", "it", "kept", "known", "left", "made", "said", "told"),
    "wanted",
}


def read_names(name: str) -> frozenset[str]:
    return frozenset((Path(__file__).parent / "support" / name).read_text().split())


RETIRED_NAMES = read_names("retired_names.txt")
# Names that others may use; files at these paths had them for what has another name now.
RETIRED_NAMES_AT = {
    r"(src/postroad|tests/\w+)/(test_)?(core|wire|net|cluster|cells|testing)(?![a-z])": read_names(
        "retired_names_lower.txt"
    ),
    r"(src/postroad|tests/(integration|support|unit))/(durable|flows)/": read_names(
        "retired_names_durable.txt"
    ),
}

# The entries of a docstring's section.
DESCRIBED = re.compile(r"^(?:Args|Attributes):\n((?:(?: {4}.*)?\n?)*)", re.MULTILINE)

UNFINISHED = "NotImplementedError"
PROMISE = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.:/-])/(?:home|root|tmp|work|Users)/\w")
REGISTRY = re.compile(
    r"--(?:extra-)?index-url|--find-links|"
    r"https?://[^\s\"'>)]*(?:artifactory|devpi|nexus|npmjs|pypi|pythonhosted)",
    re.IGNORECASE,
)

# It is on no index, where its name may be somebody else's.
UNPUBLISHED = re.compile(r"""\bpip install ["']?postroad\b""")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Rule = Callable[[str, ast.Module], Iterator[str]]


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk through everything but expressions, which are most of a tree."""
    waiting = [tree]
    for node in waiting:
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            children = getattr(node, field, None)
            waiting += children if isinstance(children, list) else ()


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in statements(tree) if isinstance(node, Function))


def body_without_docstring(function: Function) -> list[ast.stmt]:
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return function.body[1:] if has_docstring else function.body


def code_lines(function: Function, lines: list[str]) -> int:
    """Count the lines of a function without its docstring, blank lines and comments."""
    docstring = function.body[0] if ast.get_docstring(function, clean=False) is not None else None
    prose = range(docstring.lineno, (docstring.end_lineno or 0) + 1) if docstring else range(0)
    numbers = range(function.lineno, (function.end_lineno or function.lineno) + 1)
    code = (lines[number - 1].strip() for number in numbers if number not in prose)
    return sum(bool(line) and not line.startswith("#") for line in code)


def is_typing_protocol(node: ast.AST) -> bool:
    if not isinstance(node, ast.ClassDef):
        return False
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return any(ast.unparse(base) in ("Protocol", "typing.Protocol") for base in bases)


def declarations(tree: ast.AST) -> set[Function]:
    """Find the functions that only declare: in protocols, abstract ones and overloads."""
    in_protocols = {
        function
        for node in statements(tree)
        if is_typing_protocol(node)
        for function in functions(node)
    }
    decorated = {
        function
        for function in functions(tree)
        for decorator in function.decorator_list
        if ast.unparse(decorator).rpartition(".")[2] in ("abstractmethod", "overload")
    }
    return in_protocols | decorated


def is_filler(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and statement.value.value is Ellipsis
    )


def all_order(name: str) -> tuple[int, str]:
    """Order names as ruff's RUF022 does: constants, then classes, then the rest."""
    if name.isupper() and len(name) > 1:
        return (0, name)
    return (1, name) if name[:1].isupper() else (2, name)


# The rules. Each takes the text and the syntax tree of a module and yields breaches.


def oversized_module(text: str, _tree: ast.Module) -> Iterator[str]:
    length = len(text.splitlines())
    if length > MODULE_LINES_MAX:
        yield f"{length} lines; split it at {MODULE_LINES_MAX}"


def oversized_functions(text: str, tree: ast.Module) -> Iterator[str]:
    lines = text.splitlines()
    for function in functions(tree):
        length = code_lines(function, lines)
        if length > FUNCTION_LINES_MAX:
            yield f"{function.name}() has {length} lines of code; {FUNCTION_LINES_MAX} is the limit"


def unfinished_code(text: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree) if UNFINISHED in text else ():
        if isinstance(node, ast.Name) and node.id == UNFINISHED:
            yield f"line {node.lineno} is not implemented"
    declared = declarations(tree)
    for function in functions(tree):
        body = body_without_docstring(function)
        if function not in declared and body and all(map(is_filler, body)):
            yield f"{function.name}() does nothing and does not say why"


def missing_docstring(_text: str, tree: ast.Module) -> Iterator[str]:
    if not ast.get_docstring(tree):
        yield "has no docstring"


def empty_names(source: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        else:
            continue
        if name in EMPTY_NAMES:
            yield f"{node.lineno}: {name!r} does not say what it is; name the thing"


def names_among(retired: frozenset[str], tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        name = name or getattr(node, "arg", None) or getattr(node, "name", None)
        if name in retired:
            line = getattr(node, "lineno", 0)
            yield f"{line}: {name} has another name now; CHANGELOG.md and docs/glossary.md tell"


def retired_names(source: str, tree: ast.Module) -> Iterator[str]:
    return names_among(RETIRED_NAMES, tree)


def self_comparisons(source: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [ast.dump(side) for side in (node.left, *node.comparators)]
            for left, right, side in zip(sides, sides[1:], node.comparators, strict=False):
                if left == right and isinstance(side, ast.Name):
                    yield f"{node.lineno}: {ast.unparse(node)!r} compares a name with itself"


def fields_of(node: ast.ClassDef) -> set[str]:
    """Name what a class declares or assigns, in its body or to `self`, and what its __init__ takes.

    What it inherits belongs to it as far as the bases are classes of the package.
    """
    names: set[str] = set()
    for child in ast.walk(node):
        if isinstance(child, Function):
            names.add(child.name)
            if child.name == "__init__":
                names |= {parameter.arg for parameter in parameters_of(child)}
        elif isinstance(child, ast.Name | ast.Attribute) and isinstance(child.ctx, ast.Store):
            names.add(child.id if isinstance(child, ast.Name) else child.attr)
    for base in node.bases:
        name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
        if name != node.name and name in package_classes():
            names |= fields_of(package_classes()[name])
    return names


@cache
def package_classes() -> dict[str, ast.ClassDef]:
    trees = map(syntax_tree, package_files())
    return {
        node.name: node
        for tree in trees
        for node in statements(tree)
        if isinstance(node, ast.ClassDef)
    }


def parameters_of(function: Function) -> list[ast.arg]:
    taken = function.args
    several = [parameter for parameter in (taken.vararg, taken.kwarg) if parameter is not None]
    return [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, *several]


def is_overload(function: Function) -> bool:
    return any(ast.unparse(decorator) == "overload" for decorator in function.decorator_list)


def described_strangers(_text: str, tree: ast.Module) -> Iterator[str]:
    """Find entries under Args: and Attributes: that name no parameter and no field."""
    overloads = [function for function in functions(tree) if is_overload(function)]
    for node in statements(tree):
        if isinstance(node, Function):
            signatures = [node, *(other for other in overloads if other.name == node.name)]
            names = {parameter.arg for each in signatures for parameter in parameters_of(each)}
        elif isinstance(node, ast.ClassDef):
            names = fields_of(node)
        else:
            continue
        for section in DESCRIBED.findall(ast.get_docstring(node) or ""):
            for entry in re.findall(r"^ {4}(\S[^:\n]*):", section, re.MULTILINE):
                for name in entry.split(", "):
                    if name.strip("*`") not in names:
                        yield f"{node.name} describes {name!r}, which it does not have"


def breaches(rule: Rule, paths: Iterable[Path]) -> list[str]:
    return [
        f"{relative(path)}: {breach}"
        for path in paths
        for breach in rule(path.read_text(encoding="utf-8"), syntax_tree(path))
    ]


def matches(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in text_files()
        if path != Path(__file__).resolve()  # It has to spell what it refuses.
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]


def report(found: list[str]) -> str:
    return "\n" + "\n".join(found)


@pytest.mark.slow  # It reads all files first.
@pytest.mark.parametrize("rule", [oversized_module, oversized_functions])
def test_sizes(rule: Rule) -> None:
    found = breaches(rule, code_files())
    assert not found, report(found)


@pytest.mark.parametrize("rule", [unfinished_code, missing_docstring, described_strangers])
def test_package(rule: Rule) -> None:
    found = breaches(rule, package_files())
    assert not found, report(found)


def test_finished_packages_have_no_empty_names() -> None:
    paths = [path for path in package_files() if path.relative_to(PACKAGE).parts[0] in PLAIN_SPOKEN]
    found = breaches(empty_names, paths)
    assert not found, report(found)


@pytest.mark.parametrize("prefix", PLAIN_SPOKEN_TESTS)
def test_finished_tests_have_no_empty_names(prefix: str) -> None:
    paths = [path for path in code_files() if relative(path).startswith(f"tests/{prefix}")]
    assert paths, f"tests/{prefix}* is no test; correct PLAIN_SPOKEN_TESTS"
    found = breaches(empty_names, paths)
    assert not found, report(found)


@pytest.mark.slow  # It reads all files first.
def test_retired_names_do_not_come_back() -> None:
    found = breaches(retired_names, code_files())
    assert not found, report(found)


@pytest.mark.slow  # It reads all files first.
@pytest.mark.parametrize("place", RETIRED_NAMES_AT, ids=["lower", "durable"])
def test_retired_names_do_not_come_back_in_their_packages(place: str) -> None:
    paths = [path for path in code_files() if re.match(place, relative(path))]
    assert paths, "nothing is at that place; correct RETIRED_NAMES_AT"
    found = breaches(lambda _source, tree: names_among(RETIRED_NAMES_AT[place], tree), paths)
    assert not found, report(found)


@pytest.mark.slow  # It reads all files first.
def test_nothing_is_compared_with_itself() -> None:
    found = breaches(self_comparisons, code_files())
    assert not found, report(found)


def test_module_names_say_what_is_inside() -> None:
    found = [
        relative(path)
        for path in code_files()
        if GENERIC_NAMES & {part.strip("_") for part in path.with_suffix("").parts[-2:]}
    ]
    assert not found, report(found)


@pytest.mark.parametrize(
    "pattern", [PROMISE, MACHINE_PATH, REGISTRY], ids=["promise", "path", "registry"]
)
def test_texts_are_free_of(pattern: re.Pattern[str]) -> None:
    found = matches(pattern)
    assert not found, report(found)


def test_nobody_is_told_to_install_what_is_not_published() -> None:
    found = [it for it in matches(UNPUBLISHED) if not it.startswith("CHANGELOG.md:")]
    assert not found, report(found)


@pytest.mark.parametrize(
    "package", [module_name(path) for path in package_files() if path.name == "__init__.py"]
)
def test_package_declares_its_names(package: str) -> None:
    module = importlib.import_module(package)
    names = getattr(module, "__all__", None)

    assert names is not None, f"{package} has no __all__"
    assert list(names) == sorted(names, key=all_order)
    assert [name for name in names if not hasattr(module, name)] == []


# The rules themselves, on planted breaches.

LONG_FUNCTION = "def long():\n" + "    x = 1\n" * FUNCTION_LINES_MAX
COMMENTED_FUNCTION = 'def short():\n    """Say.\n\n    More.\n    """\n' + "    # why\n\n" * 90


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (oversized_module, "x = 1\n" * (MODULE_LINES_MAX + 1)),
        (oversized_functions, LONG_FUNCTION),
        (unfinished_code, f"def f():\n    raise {UNFINISHED}"),
        (unfinished_code, "def f():\n    pass"),
        (unfinished_code, 'async def f():\n    """Say."""\n    ...'),
        (unfinished_code, "class A(asyncio.Protocol):\n    def f(self): pass"),
        (missing_docstring, "x = 1"),
        (described_strangers, 'def f(x):\n    """Say.\n\n    Args:\n        y: it.\n    """'),
        (described_strangers, 'class A:\n    """Say.\n\n    Attributes:\n        y: it.\n    """'),
        (empty_names, "[it for it in members]"),
        (empty_names, "def f(told): return 1"),
        (retired_names, "from postroad.core.errors import NoSuchMember"),
        (retired_names, "table.bury_silent()"),
        (self_comparisons, "[step for step in steps if step is not step]"),
        (self_comparisons, "0 < x == x"),
    ],
)
def test_rule_reports(rule: Rule, source: str) -> None:
    assert list(rule(source, ast.parse(source)))


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (oversized_module, "x = 1\n" * MODULE_LINES_MAX),
        (oversized_functions, COMMENTED_FUNCTION + "    return 1\n"),
        (unfinished_code, "class A(Protocol):\n    def f(self): ..."),
        (unfinished_code, "class A(typing.Protocol[T]):\n    async def f(self): ..."),
        (unfinished_code, "class A:\n    @abc.abstractmethod\n    def f(self): ..."),
        (unfinished_code, 'def f():\n    """Do nothing: the null observer."""'),
        (missing_docstring, '"""Say."""'),
        (described_strangers, 'def f(*y):\n    """Say.\n\n    Args:\n        y: it.\n    """'),
        (
            described_strangers,
            'class A:\n    """Say.\n\n    Attributes:\n        y: it.\n    """\n    y: int = 1',
        ),
        (empty_names, "[member for member in members]"),
        (retired_names, "table.expire_suspects()"),
        (self_comparisons, "x is not y and table.next is not table.next"),
    ],
)
def test_rule_accepts(rule: Rule, source: str) -> None:
    assert list(rule(source, ast.parse(source))) == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (PROMISE, "# TODO: later"),
        (MACHINE_PATH, "open('/home/someone/x')"),
        (REGISTRY, "pip install --index-url x"),
        (REGISTRY, "https://pypi.org/simple"),
        (UNPUBLISHED, 'pip install "postroad[node]"'),
    ],
)
def test_pattern_matches(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)


def test_order_of_names() -> None:
    names = ["Zebra", "LIMIT", "apple", "Address", "__version__"]
    assert sorted(names, key=all_order) == ["LIMIT", "Address", "Zebra", "__version__", "apple"]
