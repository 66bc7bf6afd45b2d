"""What the pages take from the code follows from the code as it is."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from docs import _generate
from docs._generate import drawing, flow_drawings
from docs._generate import flows as flow_tables
from postroad.cluster import MembershipEventType, MemberState
from postroad.cluster.membership import TRANSITIONS, StateChangeCause
from postroad.cluster.membership.member_table import MergeResult
from postroad.core import fault_points as faults
from postroad.flows.machine import status
from postroad.flows.sessions import session
from tests.docs.pages import ROOT
from tests.support.source_tree import package_files

MEMBERSHIP = (ROOT / "docs" / "membership.md").read_text(encoding="utf-8")
REFUSAL = re.compile(r'\bcount_rejection\("([^"]+)"\)')


def labels_of(picture: str) -> list[str]:
    tree = ElementTree.fromstring(picture)
    texts = [text.text for text in tree.iter() if text.get("class", "").startswith("label")]
    return sorted(map(str, texts))


def test_generated_parts_are_up_to_date() -> None:
    assert _generate.outdated() == [], "run `python -m docs._generate`"


def test_a_change_of_the_table_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        TRANSITIONS, (MemberState.DEAD, StateChangeCause.GOSSIP_ALIVE), MemberState.SUSPECT
    )
    assert _generate.outdated() == ["member-states.svg", "membership.md"]


def test_a_way_without_a_place_fails_the_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        TRANSITIONS, (MemberState.LEFT, StateChangeCause.GOSSIP_ALIVE), MemberState.ALIVE
    )
    with pytest.raises(LookupError, match="no place"):
        drawing.draw_states()


def test_the_drawing_shows_every_change_of_state() -> None:
    assert labels_of(drawing.draw_states()) == sorted(
        cause.value for (before, cause), after in TRANSITIONS.items() if before is not after
    )


def test_a_change_of_the_tables_of_flows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = status.STATUS_TRANSITIONS[status.FlowStatus.QUEUED, status.FlowTrigger.KILL]
    monkeypatch.setitem(
        status.STATUS_TRANSITIONS, (status.FlowStatus.QUEUED, status.FlowTrigger.PAUSE), killed
    )
    assert _generate.outdated() == ["flow-life.svg", "flows-internals.md"]


def test_a_way_of_flows_without_a_place_fails_the_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    running = status.STATUS_TRANSITIONS[status.FlowStatus.PAUSED, status.FlowTrigger.RESUME]
    monkeypatch.setitem(
        status.STATUS_TRANSITIONS, (status.FlowStatus.COMPLETED, status.FlowTrigger.RETRY), running
    )
    with pytest.raises(LookupError, match="no place"):
        flow_drawings.draw_life()
    back = session.SessionTransition(session.SessionState.OPEN, session.SessionAction.BUFFER)
    monkeypatch.setitem(
        session.SESSION_TRANSITIONS,
        (session.SessionState.ENDED, session.SessionTrigger.CONFIRM),
        back,
    )
    with pytest.raises(LookupError, match="no place"):
        flow_drawings.draw_session()


def test_the_drawings_of_flows_show_every_change() -> None:
    assert labels_of(flow_drawings.draw_life()) == sorted(
        trigger.value for _, trigger in status.STATUS_TRANSITIONS
    )
    assert [it.partition(" (")[0] for it in labels_of(flow_drawings.draw_session())] == sorted(
        trigger.value
        for (before, trigger), it in session.SESSION_TRANSITIONS.items()
        if it.state is not before
    )


def test_a_fault_point_that_is_not_explained_fails_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        faults, "fault_point_names", lambda: ["flows.new.point", "flows.schedule.due"]
    )
    with pytest.raises(LookupError, match=r"flows\.new\.point is not explained"):
        flow_tables.fault_points_table()


def test_every_refusal_is_explained() -> None:
    reasons = {verdict.value for verdict in MergeResult if verdict.is_rejection}
    for path in package_files():
        reasons.update(REFUSAL.findall(path.read_text(encoding="utf-8")))
    assert "malformed packet" in reasons
    assert [reason for reason in sorted(reasons) if f"| `{reason}` |" not in MEMBERSHIP] == []


def test_every_kind_of_change_is_explained() -> None:
    assert [
        kind.name for kind in MembershipEventType if f"| `{kind.name}` |" not in MEMBERSHIP
    ] == []
