"""What travels of a member, which of two tales is newer, and what no honest node would send."""

import msgspec
import pytest

from postroad.cluster.membership import Record, State
from postroad.cluster.membership.records import (
    check_record,
    digest_of,
    may_leave,
    properties_size,
    to_member,
)
from postroad.core import Address
from postroad.core.errors import MalformedPayload
from tests.support.cluster.membership import INCARNATION, make_record, secret_of


def check(record: Record) -> None:
    check_record(record, properties_bytes_max=100)


def test_a_higher_incarnation_is_newer_than_any_state() -> None:
    newer = make_record("a", State.ALIVE, incarnation=INCARNATION + 1)
    assert newer.rank > make_record("a", State.DEAD).rank


def test_at_one_incarnation_the_later_state_is_newer() -> None:
    ranks = [make_record("a", state).rank for state in State]
    assert ranks == sorted(set(ranks))


def test_nothing_is_newer_than_goodbye() -> None:
    left = make_record("a", State.LEFT, incarnation=1)
    assert left.rank > make_record("a", State.DEAD, incarnation=2**61).rank
    assert left.rank == make_record("a", State.LEFT, incarnation=5).rank


def test_a_record_without_properties_is_else_the_same() -> None:
    record = make_record("a", properties={"key": "value"}, version=4)
    bare = record.without_properties()
    assert bare.properties is None
    assert msgspec.structs.replace(bare, properties=record.properties) == record


def test_the_public_form() -> None:
    member = to_member(make_record("a", State.SUSPECT, properties={"key": "value"}, version=2))
    assert member.name == "a"
    assert member.address == Address("a.example", 26_502)
    assert dict(member.properties) == {"key": "value"}
    assert (member.version, member.incarnation) == (2, INCARNATION)
    assert str(member) == "a at a.example:26502, suspect"


def test_properties_that_are_not_known_look_empty_and_nobody_can_change_them() -> None:
    member = to_member(make_record("a").without_properties())
    assert dict(member.properties) == {}
    with pytest.raises(TypeError):
        member.properties["key"] = "value"  # type: ignore[index]  # It must fail at run time too.


@pytest.mark.parametrize("state", State)
def test_only_an_alive_member_is_reachable(state: State) -> None:
    assert to_member(make_record("a", state)).is_reachable is (state is State.ALIVE)


def test_who_knows_the_secret_may_leave() -> None:
    digest = digest_of(secret_of("a"))
    assert may_leave(make_record("a", State.LEFT), digest)
    assert not may_leave(make_record("a", State.LEFT, secret=b"guess"), digest)
    assert not may_leave(make_record("a", State.LEFT, secret=b""), digest)


def test_the_size_of_properties_counts_bytes() -> None:
    assert properties_size({}) == 0
    assert properties_size({"ö": "日本"}) == 2 + 6 + 4


@pytest.mark.parametrize("state", State)
def test_honest_records_pass(state: State) -> None:
    check(make_record("a", state, properties={"key": "x" * 90}))
    check(make_record("a", state).without_properties())


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": "local"},
        {"name": "a/b"},
        {"name": "n" * 256},
        {"host": ""},
        {"host": "h" * 256},
        {"port": 0},
        {"port": -1},
        {"port": 65_536},
        {"incarnation": -1},
        {"incarnation": 1 << 63},
        {"version": 1 << 63},
        {"instance": -1},
        {"instance": 1 << 63},
        {"version": -1},
        {"farewell": b""},
        {"farewell": b"x" * 17},
        {"properties": {"key": "x" * 100}},
    ],
    ids=str,
)
def test_impossible_records_are_malformed(changes: dict[str, object]) -> None:
    record = msgspec.structs.replace(make_record("a"), **changes)
    with pytest.raises(MalformedPayload):
        check(record)


@pytest.mark.parametrize(
    "changes",
    [{"witness": "w" * 2_000}, {"secret": b"s" * 2_000}, {"host": "\N{SNOWMAN}" * 255}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_record_no_datagram_can_carry_is_malformed(changes: dict[str, object]) -> None:
    """It would stand at the head of the news for ever, and nothing behind it would be told."""
    longest_name = make_record("n" * 255, address=Address("10.0.0.1", 26_502))
    check(longest_name)
    record = msgspec.structs.replace(longest_name, **changes)
    with pytest.raises(MalformedPayload):
        check(record)
