"""No page of a queue is forgotten or taken twice, in whatever order it is told of and read."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from postroad.durable.consumers.read_position import ReadPosition

READ_AT_ONCE = 2

EARLY_MAX, LATE_MAX = 4, 2


class Commit(NamedTuple):
    """A commit that brings pages."""

    # How many are told of while it is under way, and how many only afterwards.
    early: int
    late: int
    fails: bool
    # For each time that something is told: whether there is room, and what happens before it.
    rooms: list[bool]
    reads: list[str]


COMMITS = st.lists(
    st.builds(
        Commit,
        st.integers(0, EARLY_MAX),
        st.integers(0, LATE_MAX),
        st.booleans(),
        st.lists(st.booleans(), min_size=10, max_size=10),
        st.lists(st.sampled_from(["", "begin", "end"]), min_size=4, max_size=4),
    ),
    max_size=12,
)


class Queue:
    """A queue with its store, and what is in memory of it."""

    def __init__(self) -> None:
        self.frontier = ReadPosition()
        self.next_id = 1
        self.stored: list[int] = []
        self.taken: list[int] = []
        self._reading: list[int] | None = None

    def begin_read(self) -> None:
        if self._reading is None and self.frontier.has_more:
            after = [id for id in self.stored if id > self.frontier.position]
            self._reading = after[:READ_AT_ONCE]

    def end_read(self) -> None:
        if self._reading is not None:
            pages, self._reading = self._reading, None
            self.frontier.on_loaded(pages, is_end=len(pages) < READ_AT_ONCE)
            self._take(*pages)

    def _take(self, *pages: int) -> None:
        self.taken += pages
        assert self.taken == sorted(set(self.taken)), "each once, in order"

    def commit(self, commit: Commit) -> None:
        """One commit, with reads between the pages that are told of while it is under way."""
        pages = range(self.next_id, self.next_id + commit.early + commit.late)
        self.next_id += len(pages)
        rooms = iter(commit.rooms)
        for page, read in zip(pages[: commit.early], commit.reads, strict=False):
            if read:
                self.begin_read() if read == "begin" else self.end_read()
            if self.frontier.on_precommit(page, has_capacity=next(rooms)):
                self._take(page)
        if commit.fails:
            self._withdraw(pages)
            return
        self.stored += pages
        for page in pages:
            if self.frontier.on_committed(page, has_capacity=next(rooms)):
                self._take(page)

    def _withdraw(self, pages: range) -> None:
        if set(pages) & set(self.taken):
            self._reading = None
            self.taken.clear()
            self.frontier.reset()


@given(COMMITS, st.booleans())
def test_every_page_is_taken_once_and_in_order(commits: list[Commit], is_read: bool) -> None:
    queue = Queue()
    if is_read:
        queue.begin_read()
        queue.end_read()
    for commit in commits:
        queue.commit(commit)
    queue.end_read()
    while queue.frontier.has_more:
        queue.begin_read()
        queue.end_read()
    assert queue.taken == queue.stored
