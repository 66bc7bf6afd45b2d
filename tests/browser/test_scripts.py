"""The files of the dashboard: short, offline, no markup made of data, a button for every change."""

import re
from pathlib import Path

import pytest

from postroad.admin.operations import OPERATIONS

STATIC = Path(__file__).parents[2] / "src/postroad/dashboard/static"
SCRIPTS = sorted(STATIC.rglob("*.js"))
LINES_MAX = 400

_ACTION = re.compile(r'^  "(?P<name>[\w.-]+)": (?P<effect>\w+)\((?P<said>.*)\),$', re.MULTILINE)
_MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|srcdoc")
_FOREIGN = re.compile(r"https?://(?!www\.w3\.org)")


def read_actions() -> dict[str, tuple[str, list[str]]]:
    """The effect of each operation that the dashboard knows, and what else it says of it."""
    text = (STATIC / "js/actions.js").read_text()
    return {
        it["name"]: (it["effect"], re.findall(r'"([^"]*)"', it["said"]))
        for it in _ACTION.finditer(text)
    }


def test_every_operation_is_known_as_the_node_knows_it() -> None:
    shown = {}
    for name, (effect, said) in read_actions().items():
        required = said if effect == "read" else said[2:]
        shown[name] = (effect, required)
    assert shown == {
        name: (it.effect.value, [said.name for said in it.parameters if said.is_required])
        for name, it in OPERATIONS.items()
    }


@pytest.mark.parametrize("name", [it.name for it in OPERATIONS.values() if not it.is_read])
def test_every_change_has_a_button_on_its_page(name: str) -> None:
    _, (page, *_) = read_actions()[name]
    texts = [it.read_text() for it in STATIC.glob(f"js/pages/{page.removesuffix('s')}*.js")]
    assert any(f'"{name}"' in text for text in texts), f"{name} is not on page {page}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda it: str(it.relative_to(STATIC)))
def test_scripts_are_short_and_make_no_markup_of_data(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < LINES_MAX
    assert not _MARKUP.search(text)
    assert not _FOREIGN.search(text), "it must work offline"


def test_the_page_has_nothing_inline() -> None:
    text = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\bstyle=|\bon\w+=|<script(?![^>]*\bsrc=)", text)
    assert not _FOREIGN.search(text)
    assert not any(_FOREIGN.search(it.read_text()) for it in STATIC.glob("css/*.css"))
