"""The program of a bank: `postroad node start` runs it at bank-a and at bank-b.

For each payment a teller asks the other bank, by a call, whether it knows the account. Then a flow
takes the money, agrees on the payment with a flow of the other bank, and posts it to the clearing
house in the commit that settles it. The tables have no unique keys: whatever happened twice would
be seen twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec

from examples.clearing.payments import (
    BANKS,
    HOUSE,
    TAKEN_CENTS_MAX,
    Payment,
    accounts_of,
    make_payment,
)
from postroad import PostroadError
from postroad.durable import Message, Transaction
from postroad.flows import (
    INJECTED,
    FlowContext,
    FlowError,
    FlowSession,
    PeerFlowFailedError,
    flow,
    responder,
)
from postroad.node import Node, consumer, current_node
from postroad.services import Context, Service, action

# Each teller rests so long between its payments, and asks for so long.
PAUSE_S = 0.25
ASK_TIMEOUT_S = 1.0
# To look at a payment takes a while, so that some are always under way.
LOOK_S = 0.2

DEBITS, CREDITS, SETTLEMENTS, REFUNDS, RECEIPTS = TABLES = (
    *("debits", "credits", "settlements", "refunds", "receipts"),
)


# Rows, each written in the commit of what it tells of.


async def write_row(table: str, payment: Payment, *, tx: Transaction = INJECTED) -> None:
    """Note a payment."""
    row = (payment.account, payment.number, payment.cents)
    await tx.execute(f"INSERT INTO {table} VALUES (?, ?, ?)", row)


async def settle(payment: Payment, *, tx: Transaction = INJECTED) -> None:
    """Note that both banks agree, and have it cleared: one commit."""
    await write_row(SETTLEMENTS, payment, tx=tx)
    tx.send("clearing", msgspec.json.encode(payment), to=HOUSE, key=payment.account)


# Flows.


@flow
async def pay(ctx: FlowContext, peer: str, payment: Payment) -> bool:
    """Take money from here and have another bank take it in; whether it did."""
    await ctx.step(write_row, DEBITS, payment)
    session = ctx.open_session(peer)
    try:
        await session.send_and_receive(payment, str)
    except PeerFlowFailedError:
        await ctx.step(write_row, REFUNDS, payment)
        return False
    await ctx.step(settle, payment)
    return True


@responder(pay)
async def take_in(ctx: FlowContext, session: FlowSession) -> None:
    """Look at a payment of another bank, and take it in."""
    payment = await session.receive(Payment)
    await ctx.sleep(LOOK_S)
    if payment.cents > TAKEN_CENTS_MAX:
        raise FlowError(f"{payment.cents} cents are too much")
    await ctx.step(write_row, CREDITS, payment)
    await session.send("agreed")


# Durable messages.


@consumer("receipts")
async def file_receipt(message: Message, tx: Transaction) -> None:
    """Note that the house has cleared a payment of this bank."""
    await write_row(RECEIPTS, msgspec.json.decode(message.body, type=Payment), tx=tx)


# Services.


class Tellers:
    """One for each account of this bank, who pays to the other."""

    def __init__(self, node: Node) -> None:
        self._node = node
        (self._peer,) = (it for it in BANKS if it != node.name)
        self._resting = asyncio.Event()
        self.counts: Counter[str] = Counter()

    async def open(self) -> dict[str, int]:
        """Make the tables; the number of the last payment of each account."""
        paid = dict.fromkeys(accounts_of(self._node.name), 0)
        async with self._node.queues.transaction() as tx:
            for table in TABLES:
                await tx.execute(
                    f"CREATE TABLE IF NOT EXISTS {table}"
                    " (account TEXT, number INTEGER, cents INTEGER)"
                )
            query = f"SELECT account, max(number) FROM {DEBITS} GROUP BY account"
            paid |= dict(await tx.execute(query))
        return paid

    async def work(self, paid: dict[str, int]) -> None:
        """Pay until told to rest."""
        async with asyncio.TaskGroup() as group:
            for account, number in paid.items():
                group.create_task(self._pay_repeatedly(account, number))

    async def _pay_repeatedly(self, account: str, number: int) -> None:
        while not self._resting.is_set():
            number += 1
            await self._ask(account)
            payment = make_payment(self._node.name, account, number)
            # Begun under a name of its own: after a crash it is not begun a second time.
            await self._node.flows.start_flow_with_id(payment.id, pay, self._peer, payment)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._resting.wait(), PAUSE_S)

    async def _ask(self, account: str) -> None:
        """Ask whether the other bank knows an account; it does not matter if it is away."""
        self.counts["asked"] += 1
        try:
            known = await self._node.broker.call(
                "bank.knows",
                {"account": account.replace(self._node.name, self._peer)},
                node_id=self._peer,
                timeout_s=ASK_TIMEOUT_S,
            )
        except PostroadError:
            self.counts["unanswered"] += 1
        else:
            self.counts["answered" if known else "wrong"] += 1

    def rest(self) -> None:
        """Begin no more payments."""
        self._resting.set()


class Bank(Service):
    """What others may ask of a bank."""

    name = "bank"
    tellers: Tellers | None = None

    @action
    async def knows(self, ctx: Context, account: str) -> bool:
        """Whether an account is of this bank."""
        return account in accounts_of(current_node().name)

    @action
    async def rest(self, ctx: Context) -> None:
        """Have the tellers begin nothing more."""
        if self.tellers is not None:
            self.tellers.rest()

    @action
    async def books(self, ctx: Context) -> dict[str, int]:
        """How many rows there are, and how calls went since the process began."""
        counts = dict(self.tellers.counts) if self.tellers is not None else {}
        async with current_node().queues.transaction() as tx:
            for table in TABLES:
                ((rows,),) = await tx.execute(f"SELECT count(*) FROM {table}")
                counts[table] = rows
        return counts


bank = Bank()


@asynccontextmanager
async def lifespan(node: Node) -> AsyncIterator[None]:
    """Have the tellers work while the node runs."""
    tellers = bank.tellers = Tellers(node)
    working = asyncio.create_task(tellers.work(await tellers.open()))
    yield
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
