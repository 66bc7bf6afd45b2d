"""Which tests guard a module: `python -m tests.which src/postroad/net/connections/pool.py`.

Printed are the test files that import the module or one of its names, themselves or through what
tests share; where there are none, those of the modules that use it, or of its whole package. Its
own unit tests come first.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.source_tree import PACKAGE, ROOT, syntax_tree

_TESTS = ROOT / "tests"
_SHARED_MAX = 2
"""How many modules of tests may stand between a test and the module."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.which", description=__doc__)
    parser.add_argument("module", nargs="+", type=Path, help="a file below src/postroad")
    parser.add_argument("--run", action="store_true", help="run them, in the tier POSTROAD_TIER")
    options = parser.parse_args()
    guards: dict[Path, None] = {}
    for path in options.module:
        path = path.resolve()
        if not path.is_relative_to(PACKAGE) or not path.exists():
            parser.error(f"{path} is no module of {PACKAGE}")
        guards |= dict.fromkeys(guards_of(path))
    names = [str(path.relative_to(ROOT)) for path in guards]
    if options.run:
        command = [sys.executable, "-m", "pytest", "-n2", "--dist=loadfile", *names]
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    sys.stdout.write("".join(f"{name}\n" for name in names))
    return 0 if names else 1


def guards_of(module: Path) -> list[Path]:
    """The test files that guard a module, its own first."""
    own = _TESTS / "unit" / module.parent.relative_to(PACKAGE)
    using, seen = {module}, {module}
    while using:
        guards = {test for path in using for test in _tests_using(path)}
        if guards:
            named = f"test_{module.stem}.py"
            return sorted(guards, key=lambda it: (it.name != named, not it.is_relative_to(own), it))
        using = {user for path in using for user in users()[path]} - seen
        seen |= using
    # What nobody imports is loaded by its name, as commands are.
    package = module.relative_to(PACKAGE).parts[0]
    folders = (_TESTS / kind / package for kind in ("unit", "integration"))
    return sorted(test for folder in folders for test in folder.rglob("test_*.py"))


def _tests_using(module: Path) -> Iterator[Path]:
    """The tests that import a module, directly or through packages and modules of tests."""
    seen = {module}
    waiting = deque([(module, 0)])
    while waiting:
        path, distance = waiting.popleft()
        for user in users()[path] - seen:
            seen.add(user)
            is_package = user.name == "__init__.py"
            if user.name.startswith("test_") and user.is_relative_to(_TESTS):
                yield user
            elif is_package or (user.is_relative_to(_TESTS) and distance < _SHARED_MAX):
                waiting.append((user, distance + (not is_package)))


@cache
def users() -> dict[Path, set[Path]]:
    """Which files import each file; a name from a package counts for the module it comes from."""
    files = [*PACKAGE.rglob("*.py"), *_TESTS.rglob("*.py")]
    using: dict[Path, set[Path]] = {path: set() for path in files}
    for path in files:
        for module, name in _imports(path):
            if (target := _find(module, name)) is not None and target in using:
                using[target].add(path)
    return using


@cache
def _imports(path: Path) -> list[tuple[str, str]]:
    base = ROOT if path.is_relative_to(_TESTS) else PACKAGE.parent
    package = path.relative_to(base).with_suffix("").parts[:-1]
    imports = []
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, *((node.module,) if node.module else ())))
            imports += [(module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            imports += [(alias.name, "") for alias in node.names]
    return imports


def _find(module: str, name: str) -> Path | None:
    """The file that defines a name, through the packages that pass it on."""
    for _ in range(5):
        inner = _file(f"{module}.{name}") if name else None
        outer = _file(module)
        if inner is not None or outer is None:
            return inner
        if outer.name != "__init__.py":
            return outer
        passed_on = [it for it in _imports(outer) if it[1] == name]
        if not passed_on:
            return outer
        module = passed_on[0][0]
    return None


@cache
def _file(module: str) -> Path | None:
    base = ROOT if module.startswith("tests") else PACKAGE.parent
    place = base.joinpath(*module.split("."))
    candidates = (place.with_suffix(".py"), place / "__init__.py")
    return next((path for path in candidates if path.exists()), None)


if __name__ == "__main__":
    sys.exit(main())
