"""Changes as people read them."""

from postroad.cluster.membership import MembershipEvent, MembershipEventType, MemberState
from postroad.cluster.membership.members import to_member
from tests.support.cluster.membership import make_record


def test_a_change_tells_what_happened_to_whom() -> None:
    change = MembershipEvent(
        MembershipEventType.REMOVED, to_member(make_record("b", MemberState.LEFT))
    )
    assert str(change) == "removed b at b.example:26502, left"
    assert MembershipEvent(MembershipEventType.ADDED, to_member(make_record("b"))).previous is None
