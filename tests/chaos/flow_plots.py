"""What banks do while one of them dies, and how it must end.

Each plot can be acted again after a death, as a client would who does not know what was done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import Any, NamedTuple

from postroad.flows.machine.state import format_flow_id, parse_flow_id
from tests.chaos.flow_bank import BRANCHES, CENTS_MAX, LINES
from tests.chaos.flow_processes import FlowNode
from tests.support.deadlines import eventually
from tests.support.flows.kill_scenarios import PAYEE, THIRD

CENTS = 100
NAP_S = 1.2


class Town(NamedTuple):
    """Three banks."""

    payer: FlowNode
    payee: FlowNode
    third: FlowNode

    def find(self, name: str) -> FlowNode:
        return next(it for it in self if it.name == name)


class Plot(ABC):
    """Something that banks do.

    Attributes:
        subject: what it is about; no other plot is about that.
        id: the flow of the payer that does it.
        recorded: how many of its steps were recorded when somebody died.
        done_before: what had been done outside of the store by then.
    """

    flow = ""
    more: tuple[object, ...] = ()
    """What the flow wants to know besides the peer and the subject."""

    def __init__(self, town: Town, subject: str) -> None:
        self.town = town
        self.payer, self.payee, _ = town
        self.subject = subject
        self.id = ""
        self.recorded = 0
        self.done_before: list[tuple[str, str]] = []

    @property
    def args(self) -> tuple[object, ...]:
        return (PAYEE, self.subject, *self.more)

    async def begin(self) -> None:
        id = await self.payer.begin(self.subject, self.flow, *self.args)
        assert self.id in ("", id), "a second flow was begun under the same id"
        self.id = id

    async def act(self) -> Any:
        """Do it, or go on with it, if somebody has died; returns what came of it."""
        await self.begin()
        return await self.payer.result(self.subject)

    def on_death(self) -> None:
        """Somebody is dead."""
        found = self.payer.query("SELECT id FROM postroad_flows WHERE client_id = ?", self.subject)
        if found:
            rows = "SELECT COUNT(*) FROM postroad_flow_steps WHERE flow = ?"
            self.recorded = self.payer.query(rows, found[0][0])[0][0]
        self.done_before = self.payer.done_outside(self.subject)

    async def responder(self) -> str:
        """The flow of the payee that responds; waits until it is there."""
        await eventually(lambda: bool(self.payee.responders(self.id)), "a responder")
        return self.payee.responders(self.id)[0]

    async def all_heard(self) -> None:
        await eventually(lambda: not self.payer.waiting and not self.payee.waiting, "all was heard")

    @abstractmethod
    def check(self, outcome: Any) -> None:
        """Everything has come to an end: it must be this."""

    def check_statuses(self, initiator: str, responder: str | None) -> None:
        assert self.payer.status(self.id) == initiator
        statuses = [self.payee.status(it) for it in self.payee.responders(self.id)]
        assert statuses == ([] if responder is None else [responder])

    def check_outside(self, count: int) -> None:
        """What was done outside is what was not recorded, each under one id."""
        done = self.payer.done_outside(self.subject)
        assert len(done) - len(self.done_before) == count - self.recorded
        assert len(set(done)) == len({what for what, _ in done}) == count


class Pay(Plot):
    flow = "pay"
    more = (CENTS,)

    def check(self, outcome: Any) -> None:
        receipt = f"took {self.subject}"
        assert outcome == {"value": receipt}
        assert self.payer.moves(self.subject) == [-CENTS]
        assert self.payee.moves(self.subject) == [CENTS]
        assert self.payer.notes(self.subject) == [receipt]
        self.check_statuses("done", "done")


class PayTooMuch(Pay):
    cents = CENTS_MAX + 1
    more = (cents,)
    error_ids: tuple[str, str] = ("", "")

    async def act(self) -> Any:
        outcome = await super().act()
        here = await self.payer.show(self.id)
        there = await self.payee.show(self.payee.responders(self.id)[0])
        self.error_ids = here["error_id"], there["error_id"]
        return outcome

    def check(self, outcome: Any) -> None:
        assert outcome["error"] == "PeerFlowFailedError"
        assert f"{self.subject} is too much" in outcome["text"]
        assert self.error_ids[0] == self.error_ids[1] != ""
        assert self.payer.moves(self.subject) == [-self.cents, self.cents]
        assert self.payee.moves(self.subject) == []
        self.check_statuses("failed", "failed")


class PayBoth(Plot):
    flow = "pay_both"

    @property
    def args(self) -> tuple[object, ...]:
        return ([PAYEE, THIRD], self.subject, CENTS)

    def check(self, outcome: Any) -> None:
        assert outcome == {"value": [f"took {self.subject}"] * 2}
        assert self.payer.moves(self.subject) == [-CENTS, -CENTS]
        assert self.payee.moves(self.subject) == [CENTS]
        assert self.town.third.moves(self.subject) == [CENTS]
        assert len(self.town.third.responders(self.id)) == 1
        self.check_statuses("done", "done")


class Dictate(Plot):
    """The payee listens only when everything was said."""

    flow = "dictate"

    async def act(self) -> Any:
        await self.begin()
        responder = await self.responder()
        await self.payer.operate("signal", self.id, "more", True)
        outcome = await self.payer.result(self.subject)
        await self.all_heard()
        await self.payee.operate("signal", responder, "listen", True)
        await eventually(lambda: self.payee.status(responder) == "done", "it was listened to")
        return outcome

    def check(self, outcome: Any) -> None:
        assert outcome == {"value": LINES}
        lines = [f"{self.subject} {number}" for number in range(LINES)]
        assert self.payee.notes(self.subject) == [*lines, "end"]
        assert {what for what, _ in self.payer.done_outside(self.subject)} == {"closed"}
        self.check_statuses("done", "done")


class KillFlow(Plot):
    """An operator kills a flow that waits for another."""

    flow = "ask"

    async def act(self) -> Any:
        await self.begin()
        responder = await self.responder()
        await self.payer.operate("kill", self.id, "enough")
        outcome = await self.payer.result(self.subject)
        await self.all_heard()
        await self.payee.operate("signal", responder, "answer", True)
        return outcome

    def check(self, outcome: Any) -> None:
        assert outcome == {"error": "FlowKilledError", "text": "enough"}
        assert self.payee.notes(self.subject) == ["PeerFlowFailedError"]
        self.check_statuses("killed", "done")


class Blurt(Plot):
    """A flow fails while nobody knows where the other end is."""

    flow = "blurt"

    async def act(self) -> Any:
        self.payer.lose(self.payee)
        await self.begin()
        outcome = await self.payer.result(self.subject)
        self.payer.meet(self.payee)
        responder = await self.responder()
        await eventually(lambda: self.payee.status(responder) == "done", "it was heard out")
        return outcome

    def check(self, outcome: Any) -> None:
        text = f"{self.subject} was a mistake"
        assert outcome == {"error": "FlowError", "text": text}
        (heard,) = self.payee.notes(self.subject)
        assert heard.startswith("FlowError") and text in heard
        self.check_statuses("failed", "done")


class Collect(Plot):
    flow = "collect"

    def check(self, outcome: Any) -> None:
        lines = [f"{self.subject}-{number}" for number in range(LINES)]
        assert outcome == {"value": lines}
        assert self.payer.notes(self.subject) == [" ".join(lines)]
        assert len(set(self.payer.done_outside(self.subject))) == 1
        assert len(set(self.payee.done_outside(self.subject))) == LINES
        self.check_statuses("done", "done")


class BeRejected(Plot):
    flow = "order"

    def check(self, outcome: Any) -> None:
        assert outcome["error"] == "SessionRejectedError"
        assert "take_order talks to versions 1 of order, not to 2" in outcome["text"]
        assert self.payee.notes(self.subject) == []
        self.check_statuses("failed", None)


class Alone(Plot):
    """A flow that talks to nobody."""

    @property
    def args(self) -> tuple[object, ...]:
        return (self.subject, *self.more)


class RunErrand(Alone):
    flow = "errand"

    def check(self, outcome: Any) -> None:
        assert outcome == {"value": ["first", "second", "third"]}
        self.check_outside(3)


class Browse(Alone):
    """What was looked at again is what everything that came of it has."""

    flow = "browse"

    def check(self, outcome: Any) -> None:
        first, second = outcome["value"]
        assert self.payer.notes(self.subject) == [f"{first} {second}"]
        done = Counter(what for what, _ in self.payer.done_outside(self.subject))
        assert done == {"first": first + 1, "second": second + 1}
        before = Counter(what for what, _ in self.done_before)
        # Both, or none: they are in one commit.
        assert self.recorded in (0, 2, 3)
        last = 1 if self.recorded else 0
        assert (first, second) == (before["first"] - last, before["second"] - last)


class RunErrands(Alone):
    flow = "errands"

    def check(self, outcome: Any) -> None:
        assert outcome == {"value": [f"branch-{number}" for number in range(BRANCHES)]}
        self.check_outside(BRANCHES)


class Choose(Alone):
    """Both come, one after the other."""

    flow = "choose"

    async def act(self) -> Any:
        await self.begin()
        await eventually(lambda: bool(self.payer.done_outside(self.subject)), "the step that hangs")
        await self.payer.operate("signal", self.id, "first", True)
        await self.payer.operate("signal", self.id, "second", True)
        return await self.payer.result(self.subject)

    def check(self, outcome: Any) -> None:
        assert outcome == {"value": "first"}
        assert self.payer.notes(self.subject) == ["first"]
        hung = Counter(self.payer.done_outside(self.subject))
        # If the choice was not recorded, the step that hangs is done again.
        assert [*hung.values()] == [1 if self.recorded else 2]


class Nap(Alone):
    flow = "nap"
    more = (NAP_S,)
    wakes_ms = started_ms = 0

    async def act(self) -> Any:
        await self.begin()
        await eventually(self._is_awake, "it is awake")
        self.started_ms = round((await self.payer.show(self.id))["started_at"] * 1000)
        return await self.payer.result(self.subject)

    def _is_awake(self) -> bool:
        """Whether it is done; until then, the time at which it shall wake is always the same."""
        assert not self.wakes_ms or self._find_wakes_ms() in (self.wakes_ms, 0, None)
        return self.payer.status(self.id) == "done"

    def on_death(self) -> None:
        super().on_death()
        self.wakes_ms = self._find_wakes_ms()

    def _find_wakes_ms(self) -> Any:
        statement = "SELECT wake_ms FROM postroad_flows WHERE client_id = ?"
        return self.payer.query(statement, self.subject)[0][0]

    def check(self, outcome: Any) -> None:
        assert outcome["value"] >= NAP_S
        assert self.payer.notes(self.subject) == ["awake"]
        assert self.recorded or self.wakes_ms == self.started_ms + round(NAP_S * 1000)


class CallSubflow(Alone):
    flow = "whole"

    def check(self, outcome: Any) -> None:
        assert outcome == {"value": "inside"}
        assert self.payer.notes(self.subject) == ["before", "inside", "after"]
        done = Counter(what for what, _ in self.payer.done_outside(self.subject))
        assert done["before"] == 1
        assert len(set(self.payer.done_outside(self.subject))) == 2


class Ail(Alone):
    flow = "ail"

    def check(self, outcome: Any) -> None:
        assert outcome == {"value": "well"}
        assert self.payer.notes(self.subject) == ["before", "after"]
        (times,) = Counter(self.payer.done_outside(self.subject)).values()
        assert times == 2


class OrderWithin(Alone):
    """A transaction writes a row, begins a flow and signals it."""

    flow = "ship"

    async def begin(self) -> None:
        await self.payer.do("order", self.subject, "Ghent")

    async def act(self) -> Any:
        await self.begin()
        await eventually(self._is_there, "the flow that was ordered")
        return await self.payer.result(self.subject)

    def _is_there(self) -> bool:
        statement = "SELECT id FROM postroad_flows WHERE client_id = ?"
        self.id = "".join(format_flow_id(id) for (id,) in self.payer.query(statement, self.subject))
        return bool(self.id)

    def check(self, outcome: Any) -> None:
        assert outcome == {"value": None}
        assert self.payer.notes(self.subject) == ["ordered", "packed", "Ghent"]
        self.check_statuses("done", None)


class OrderFromOutside(OrderWithin):
    """Another process does it, with a connection of its own."""

    is_ordered = False

    async def begin(self) -> None:
        if not self.is_ordered:
            self.payer.order_from_outside(self.subject, "Ghent")
            self.is_ordered = True


class Delegate(Alone):
    """Children write things down, and their parent what they returned."""

    flow = "delegate"

    def check(self, outcome: Any) -> None:
        assert outcome == {"value": ["one", "two"]}
        notes = self.payer.notes(self.subject)
        assert (sorted(notes[:-1]), notes[-1]) == (["one", "two"], "one two")
        statement = "SELECT status FROM postroad_flows WHERE name = 'task' AND client_id LIKE ?"
        assert self.payer.query(statement, f"tx:{self.id}.%") == [("done",)] * 2


class Cancel(Alone):
    """An operator cancels a flow, which undoes what it has done."""

    flow = "book"

    async def act(self) -> Any:
        await self.begin()
        await eventually(lambda: self._count_steps() > 0, "the booking")
        if self._count_steps() == 1:
            await self.payer.operate("cancel", self.id, "enough")
        return await self.payer.result(self.subject)

    def _count_steps(self) -> int:
        rows = "SELECT COUNT(*) FROM postroad_flow_steps WHERE flow = ?"
        return int(self.payer.query(rows, parse_flow_id(self.id))[0][0])

    def check(self, outcome: Any) -> None:
        assert outcome == {"error": "FlowCancelledError", "text": "enough"}
        assert self.payer.notes(self.subject) == ["booked", "refunded"]
        self.check_statuses("failed", None)


PLOTS: dict[str, type[Plot]] = {
    "pay": Pay,
    "be paid": Pay,
    "pay too much": PayTooMuch,
    "pay both": PayBoth,
    "dictate": Dictate,
    "kill": KillFlow,
    "blurt": Blurt,
    "collect": Collect,
    "be rejected": BeRejected,
    "run an errand": RunErrand,
    "browse": Browse,
    "run errands": RunErrands,
    "choose": Choose,
    "nap": Nap,
    "call a subflow": CallSubflow,
    "ail": Ail,
    "order": OrderWithin,
    "order from outside": OrderFromOutside,
    "delegate": Delegate,
    "cancel": Cancel,
}
