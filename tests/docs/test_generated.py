"""What the pages take from the code follows from the code as it is."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from docs import _generate
from docs._generate import drawing
from postroad.cluster import ChangeKind, State
from postroad.cluster.membership import TRANSITIONS, Cause
from postroad.cluster.membership.roster import Verdict
from tests.docs.pages import ROOT
from tests.source_tree import package_files

MEMBERSHIP = (ROOT / "docs" / "membership.md").read_text(encoding="utf-8")
REFUSAL = re.compile(r'\brefuse\("([^"]+)"\)')


def test_generated_parts_are_up_to_date() -> None:
    assert _generate.outdated() == [], "run `python -m docs._generate`"


def test_a_change_of_the_table_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRANSITIONS, (State.DEAD, Cause.HEARD_ALIVE), State.SUSPECT)
    assert _generate.outdated() == ["member-states.svg", "membership.md"]


def test_a_way_without_a_place_fails_the_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRANSITIONS, (State.LEFT, Cause.HEARD_ALIVE), State.ALIVE)
    with pytest.raises(LookupError, match="no place"):
        drawing.draw_states()


def test_the_drawing_shows_every_change_of_state() -> None:
    tree = ElementTree.fromstring(drawing.draw_states())
    texts = [text.text for text in tree.iter() if text.get("class", "").startswith("label")]
    assert sorted(map(str, texts)) == sorted(
        cause.value for (before, cause), after in TRANSITIONS.items() if before is not after
    )


def test_every_refusal_is_explained() -> None:
    reasons = {verdict.value for verdict in Verdict if verdict.is_refusal}
    for path in package_files():
        reasons.update(REFUSAL.findall(path.read_text(encoding="utf-8")))
    assert "malformed packet" in reasons
    assert [reason for reason in sorted(reasons) if f"| `{reason}` |" not in MEMBERSHIP] == []


def test_every_kind_of_change_is_explained() -> None:
    assert [kind.name for kind in ChangeKind if f"| `{kind.name}` |" not in MEMBERSHIP] == []
