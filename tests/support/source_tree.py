"""The files of this repository, for the tests that read them."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "postroad"

_CODE = ("src", "tests", "examples", "benchmarks", "fuzz")
_GENERATED = {"__pycache__", "_build", "build", "dist", "node_modules", "out"}
_TEXT_NAMES = {"Makefile", "run"}
_TEXT_SUFFIXES = {".cfg", ".ini", ".md", ".py", ".sh", ".toml", ".yaml", ".yml"}


def files(top: Path) -> Iterator[Path]:
    """Yield the files below a directory that people wrote, in a fixed order."""
    for path in sorted(top.iterdir()):
        if path.is_file():
            yield path
        elif path.name == ".ci" or not (path.name.startswith(".") or path.name in _GENERATED):
            yield from files(path)


@cache
def text_files() -> tuple[Path, ...]:
    """All text files: code, configuration, documentation."""
    return tuple(
        path for path in files(ROOT) if path.suffix in _TEXT_SUFFIXES or path.name in _TEXT_NAMES
    )


@cache
def code_files() -> tuple[Path, ...]:
    """All Python modules: the package, its tests and its programs."""
    return tuple(
        path
        for path in text_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in _CODE
    )


@cache
def package_files() -> tuple[Path, ...]:
    """The modules of the package itself."""
    return tuple(path for path in code_files() if path.is_relative_to(PACKAGE))


@cache
def syntax_tree(path: Path) -> ast.Module:
    """Parse a module, once."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def relative(path: Path) -> str:
    """Name a file the way a person in the repository would."""
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """Name a file of the package the way an import statement does."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
