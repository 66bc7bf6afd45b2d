"""The files of the dashboard: short, offline, no markup made of data, a button for every change."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
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


@pytest.mark.parametrize("name", [it.name for it in OPERATIONS.values() if not it.is_read])
def test_every_button_is_pressed_by_a_test(name: str) -> None:
    tests = [it.read_text() for it in Path(__file__).parent.glob("test_*.py")]
    assert any(f'.press("{name}"' in text for text in tests), f"nobody presses {name}"


# What operators are told by other means.
UNSEEN = {
    "GraphView.mermaid": "the graph is drawn",
    "EmitView.is_durable": "they have just said so themselves",
    "EmitView.is_broadcast": "likewise",
    "FlowCountView.statuses": "they are in the overview",
    "HistoryStep.entry": "for `postroad flow export`",
    "ResultView.encoded": "for programs",
    "TroubleView.part": "the way there leads to it",
}
# A span is shown with all that it carries.
WHOLE = {"SpanView"}


def test_everything_that_the_node_tells_is_shown() -> None:
    text = "".join(it.read_text() for it in SCRIPTS)
    told = {
        f"{view.__name__}.{field.name}"
        for view in {view for it in OPERATIONS.values() for view in views_in(it.result)}
        if view.__name__ not in WHOLE
        for field in msgspec.structs.fields(view)
        if not re.search(rf"\.{field.name}\b|\"{field.name}\"|[{{,] {field.name}[,:]? ", text)
    }
    assert told == UNSEEN.keys()


def views_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """The views that a result is made of."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for field in msgspec.structs.fields(kind):
            yield from views_in(field.type)
    for argument in get_args(kind):
        yield from views_in(argument)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda it: str(it.relative_to(STATIC)))
def test_scripts_are_short_and_make_no_markup_of_data(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < LINES_MAX
    assert not _MARKUP.search(text)
    assert not _FOREIGN.search(text), "it must work offline"


# Text upon ground, as the styles have it.
INKS = {
    "ink": ("ground", "surface", "raised"),
    "muted": ("ground", "surface", "raised"),
    "accent": ("ground", "surface"),
    "on-accent": ("accent",),
    "ok": ("ok-ground",),
    "warning": ("warning-ground", "surface"),
    "failing": ("failing-ground", "surface"),
}
CONTRAST_MIN = 4.5


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_upon_its_ground(scheme: int) -> None:
    text = (STATIC / "css/base.css").read_text()
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", text)
    colours = {name: pair[scheme] for name, *pair in found}
    weak = [
        (ink, ground, round(ratio, 2))
        for ink, grounds in INKS.items()
        for ground in grounds
        if (ratio := contrast(colours[ink], colours[ground])) < CONTRAST_MIN
    ]
    assert weak == []


def contrast(one: str, other: str) -> float:
    """How far apart two colours are, as WCAG 2 measures it: from 1 to 21."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        it / 12.92 if it <= 0.04045 else ((it + 0.055) / 1.055) ** 2.4 for it in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_page_has_nothing_inline() -> None:
    text = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\bstyle=|\bon\w+=|<script(?![^>]*\bsrc=)", text)
    assert not _FOREIGN.search(text)
    assert not any(_FOREIGN.search(it.read_text()) for it in STATIC.glob("css/*.css"))
