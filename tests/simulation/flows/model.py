"""What must come of an order where nothing is in the way: as simple as it can be said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tests.simulation.flows.bank import FEE
from tests.simulation.flows.clerks import FAILED
from tests.simulation.flows.orders import Kind, Order, parts_of


class Move(NamedTuple):
    node: str
    part: str
    what: str
    amount: int


class Response(NamedTuple):
    node: str
    flow: str
    ending: str


class Course(NamedTuple):
    ending: str
    moves: Counter[Move]
    responses: Counter[Response]


def courses_of(order: Order) -> list[Course]:
    """All ways an order can go without anybody killing a flow; most have one."""
    return list(_COURSES[order.kind](order))


def _pay(order: Order) -> Iterator[Course]:
    taken = f"collected {order.amount}"
    yield _payment(order, [Response(order.payee, "collect", FAILED if order.is_refused else taken)])


def _clear(order: Order) -> Iterator[Course]:
    cleared, taken = f"cleared {order.amount}", f"collected {order.amount}"
    responses = [
        Response(order.third, "clearing", FAILED if order.is_refused else cleared),
        Response(order.payee, "settle", FAILED if order.is_refused else taken),
    ]
    course = _payment(order, responses)
    course.moves.update(_notes(order, order.third))
    if not order.is_refused:
        course.moves[Move(order.third, order.name, "fee", FEE)] += 1
    yield course


def _notes(order: Order, node: str) -> list[Move]:
    numbers = range(order.lines if order.is_chatty else 0)
    return [Move(node, order.name, "note", number) for number in numbers]


def _payment(order: Order, responses: list[Response]) -> Course:
    name, amount = order.name, order.amount
    moves = [Move(order.payer, name, "debit", -amount), *_notes(order, order.payer)]
    if not order.is_refused:
        ending = f"paid {amount}"
        moves.append(Move(order.payee, name, "credit", amount))
    elif order.is_forgiving:
        ending = "refused"
        moves.append(Move(order.payer, name, "refund", amount))
    else:
        ending = FAILED
    return Course(ending, Counter(moves), Counter(responses))


def _split(order: Order) -> Iterator[Course]:
    payments = [course for part in parts_of(order) for course in _pay(part)]
    yield _together(payments, " + ".join(payment.ending for payment in payments))


def _standing(order: Order) -> Iterator[Course]:
    payments = [course for part in parts_of(order) for course in _pay(part)]
    yield _together(payments, "paid all")


def _together(payments: list[Course], ending: str) -> Course:
    moves: Counter[Move] = Counter()
    responses: Counter[Response] = Counter()
    for payment in payments:
        moves += payment.moves
        responses += payment.responses
    return Course(ending, moves, responses)


def _approve(order: Order) -> Iterator[Course]:
    courses = [*_pay(order)] if order.is_approved else [_idle("disapproved")]
    if order.patience_s is not None:
        courses.append(_idle("forgotten"))
    for course in courses:
        course.moves[Move(order.payer, order.name, "reserve", 0)] += 1
        yield course


def _idle(ending: str) -> Course:
    return Course(ending, Counter(), Counter())


def _lease(order: Order) -> Iterator[Course]:
    name, amount = order.name, order.amount
    moves = [
        Move(order.payer, name, "debit", -amount),
        # The first answer it waits for does not come.
        *_notes(order, order.payer)[:1],
        Move(order.payer, name, "refund", amount),
    ]
    yield Course("rejected", Counter(moves), Counter())


def _quote(order: Order) -> Iterator[Course]:
    offers = {"payee": order.payee, "third": order.third}
    for chosen in ("payee", "third", "nobody"):
        moves: Counter[Move] = Counter()
        responses: Counter[Response] = Counter()
        for name, node in offers.items():
            ending = f"sold for {order.amount}" if name == chosen else "declined"
            responses[Response(node, "offer", ending)] += 1
        if chosen in offers:
            moves[Move(order.payer, order.name, "debit", -order.amount)] += 1
            moves[Move(offers[chosen], order.name, "credit", order.amount)] += 1
        yield Course(f"bought from {chosen}", moves, responses)


_COURSES = {
    Kind.PAY: _pay,
    Kind.CLEAR: _clear,
    Kind.SPLIT: _split,
    Kind.STANDING: _standing,
    Kind.APPROVE: _approve,
    Kind.QUOTE: _quote,
    Kind.LEASE: _lease,
    Kind.SALARY: _pay,
}


def possible_moves(order: Order) -> set[Move]:
    """All that may be moved, also where somebody kills a flow of it."""
    moves = {move for course in courses_of(order) for move in course.moves}
    for part in parts_of(order):
        moves.add(Move(part.payer, part.name, "refund", part.amount))
    return moves
