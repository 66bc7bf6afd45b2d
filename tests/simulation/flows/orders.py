"""What the simulated banks are asked to do."""

from __future__ import annotations

import enum

import msgspec

from postroad.flows import CatchUpPolicy


class Kind(enum.StrEnum):
    PAY = "pay"
    """From one bank to another."""
    CLEAR = "clear"
    """The same by way of a third."""
    SPLIT = "split"
    """To two banks at the same time."""
    QUOTE = "quote"
    """To whichever of two banks answers first."""
    APPROVE = "approve"
    """When somebody allows it."""
    STANDING = "standing"
    """Again and again."""
    LEASE = "lease"
    """To a bank whose code is too old to take it."""
    SALARY = "salary"
    """Whenever a schedule says so."""


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the flow that is begun for it gets, and tells the others."""

    name: str
    kind: Kind
    payer: str
    payee: str
    third: str
    """Who clears it, gets half of it, or makes another offer."""
    amount: int
    lines: int = 0
    """So many things are said before it comes to money."""
    is_chatty: bool = False
    """Whether each of them is answered."""
    is_refused: bool = False
    """Whether the payee wants none of it."""
    is_forgiving: bool = False
    """Whether the payer can live with that."""
    is_odd: bool = False
    """Whether the payer does several other things before."""
    is_approved: bool = True
    renewals: int = 0
    """How often it is still to be paid."""
    rest_s: float = 0.0
    payee_rest_s: float = 0.0
    patience_s: float | None = None
    """How long somebody else is waited for."""
    flaky: float = 0.0
    """Chance that a step fails for once."""


class Receipt(msgspec.Struct, frozen=True):
    order: str
    amount: int
    lines: int


class Job(msgspec.Struct, frozen=True, kw_only=True):
    order: Order
    time: float
    is_named: bool
    """Whether it is given under its name, again and again until that is confirmed."""
    repeats: int
    """How often an impatient client says it at once."""
    pause_s: float = 0.0
    """How long the client waits before it says more about it."""

    @property
    def name(self) -> str:
        return self.order.name


class Timetable(msgspec.Struct, frozen=True, kw_only=True):
    order: Order
    minutes: int
    """It is given whenever the minute of the clock is a multiple of that."""
    catch_up: CatchUpPolicy

    @property
    def name(self) -> str:
        return self.order.name

    @property
    def cron(self) -> str:
        return f"*/{self.minutes} * * * *"


def payment_of(order: Order, flow: str) -> Order:
    """What is paid by one of the flows that a schedule begins."""
    return msgspec.structs.replace(order, name=f"{order.name}/{flow}")


def parts_of(order: Order) -> list[Order]:
    if order.kind is Kind.SPLIT:
        half = order.amount // 2
        return [
            _part(order, 0, order.payee, half),
            _part(order, 1, order.third, order.amount - half),
        ]
    if order.kind is Kind.STANDING:
        return [
            _part(order, remaining, order.payee, order.amount)
            for remaining in range(order.renewals, 0, -1)
        ]
    return [order]


def _part(order: Order, number: int, payee: str, amount: int) -> Order:
    return msgspec.structs.replace(
        order, name=f"{order.name}/{number}", kind=Kind.PAY, payee=payee, amount=amount
    )
