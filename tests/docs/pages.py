"""The pages people read, and the code on them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINES = r"((?:(?!```).*\n)*)"
_PRINTED = re.compile(rf"^```python\n{_LINES}```\n\n```text\n{_LINES}```$", re.MULTILINE)
_FILE = re.compile(r"# ([\w-]+\.py)\n")


def programs() -> dict[str, str]:
    """Every example that is a whole program, which is one that imports and is no file."""
    return {
        f"{page.stem}-{number}": block
        for page in PAGES
        for number, block in enumerate(_BLOCK.findall(page.read_text(encoding="utf-8")), 1)
        if "import" in block and not _FILE.match(block)
    }


def printed(page: str) -> dict[str, str]:
    """What each program of a page prints, if that stands below it."""
    (path,) = (it for it in PAGES if it.stem == page)
    told = dict(_PRINTED.findall(path.read_text(encoding="utf-8")))
    return {name: told[block] for name, block in programs().items() if block in told}


def files_of(page: str) -> dict[str, str]:
    """Examples of a page that begin with the name of a file, which others of the page import."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = ((_FILE.match(block), block) for block in _BLOCK.findall(text))
    return {named[1]: block for named, block in blocks if named}
