"""The files and names of the code that pages cite exist, and none of them is a former name."""

import pkgutil
import re
from collections.abc import Callable, Iterator

import pytest

from tests.docs.pages import PAGES, ROOT
from tests.support.source_tree import PACKAGE, relative, text_files

Rule = Callable[[str], Iterator[str]]

CITING = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
RETIRED = set((ROOT / "tests/support/retired_names.txt").read_text().split())
# Groups of entry points are named like modules.
GROUPS = {"postroad.pipeline.inputs", "postroad.pipeline.outputs"}
FILES = {f"/{relative(path)}" for path in text_files()}

_PACKAGES = "|".join(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"`((?:[\w-]+/)+(?:[\w-]+\.py)?)`")
_NAMES_IN = re.compile(r"`([\w/-]+\.py)`: (`\w+`(?:(?:, | and |, then )`\w+`)*)")
_DOTTED = re.compile(rf"\bpostroad\.(?:{_PACKAGES})\b(?:\.\w+)*")


def places(path: str) -> list[str]:
    """Return the files whose paths end with what a page says, or are in the folder it says."""
    return [
        file
        for file in FILES
        if file.endswith(f"/{path}") or (path[-1] == "/" and f"/{path}" in file)
    ]


def unknown_paths(text: str) -> Iterator[str]:
    prose = _FENCED.sub("", text)
    yield from (path for path in _PATH.findall(prose) if not places(path))
    for path, names in _NAMES_IN.findall(prose):
        code = "".join((ROOT / file[1:]).read_text(encoding="utf-8") for file in places(path))
        for name in re.findall(r"\w+", names):
            if not re.search(rf"\b{name}\b", code):
                yield f"{name} in {path}"


def unknown_names(text: str) -> Iterator[str]:
    for name in set(_DOTTED.findall(text)) - GROUPS:
        try:
            pkgutil.resolve_name(name)
        except (AttributeError, ImportError):
            yield name


def former_names(text: str) -> Iterator[str]:
    for code in _CODE.findall(text):
        yield from RETIRED.intersection(re.findall(r"\w+", code))


@pytest.mark.parametrize("rule", [unknown_paths, unknown_names, former_names])
def test_pages_cite_what_exists(rule: Rule) -> None:
    breaches = {
        relative(page): found
        for page in CITING
        if (found := list(rule(page.read_text(encoding="utf-8"))))
    }
    assert not breaches


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (unknown_paths, "`net/nowhere.py`"),
        (unknown_paths, "`tests/nowhere/`"),
        (unknown_paths, "`net/tls.py`: `NoSuchName`"),
        (unknown_names, "postroad.net.nowhere.Nothing"),
        (former_names, "`TlsConfig(is_mutual=False)`"),
    ],
)
def test_rule_reports(rule: Rule, text: str) -> None:
    assert list(rule(text))
