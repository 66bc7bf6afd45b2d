"""Places for connections, and who makes room when there are none left."""

from postroad.admin.http.accepting import Place, Room, source_of


class Guests:
    """A room, and who was closed in it."""

    def __init__(self, places_max: int) -> None:
        self.room = Room(places_max)
        self.closed: list[str] = []

    def enter(self, name: str, source: str = "10.0.0.1") -> Place | None:
        return self.room.enter(source, lambda: self.closed.append(name))


def test_room_when_full_closes_the_oldest_connection() -> None:
    guests = Guests(3)
    for name in "abcde":
        assert guests.enter(name) is not None
    assert guests.closed == ["a", "b"]
    assert len(guests.room) == 3


def test_room_when_full_closes_connections_of_the_source_that_has_most() -> None:
    guests = Guests(4)
    assert guests.enter("probe", "10.0.0.9")
    for name in "abcdef":
        guests.enter(name, "10.0.0.1")
    assert guests.closed == ["a", "b", "c"]


def test_room_keeps_those_who_wait_for_an_answer_and_refuses_when_all_do() -> None:
    guests = Guests(2)
    first, second = guests.enter("a"), guests.enter("b")
    assert first is not None
    assert second is not None
    guests.room.keep(first)
    third = guests.enter("c")
    assert third is not None
    assert guests.closed == ["b"]
    guests.room.keep(third)
    assert guests.enter("d") is None
    # Who has been answered is the youngest of those that can make room.
    guests.room.release(third)
    guests.room.release(first)
    assert guests.enter("e") is not None
    assert guests.closed == ["b", "c"]


def test_room_forgets_those_who_left_or_were_closed() -> None:
    guests = Guests(1)
    first = guests.enter("a")
    assert first is not None
    guests.room.leave(first)
    assert len(guests.room) == 0
    assert not guests.room.make_room()
    assert guests.enter("b") is not None
    # Its connection ends after somebody else has its place.
    guests.room.release(first)
    guests.room.leave(first)
    assert guests.enter("c") is not None
    assert guests.closed == ["b"]


def test_source_is_an_address_or_the_network_of_one_machine() -> None:
    assert source_of(("10.0.0.1", 1)) == source_of(("10.0.0.1", 2)) == "10.0.0.1"
    assert source_of(("::ffff:10.0.0.1", 1, 0, 0)) == "10.0.0.1"
    assert source_of(("2001:db8::1", 1, 0, 0)) == source_of(("2001:db8::2:3", 1, 0, 0))
    assert source_of(("2001:db8::1", 1, 0, 0)) != source_of(("2001:db8:0:1::1", 1, 0, 0))
    assert source_of(("fe80::1%eth0", 1, 0, 2)) == source_of(("fe80::2", 1, 0, 2))
    assert source_of(("testclient", 1)) == "testclient"
