"""What banks with flows do: agree on payments, each of which is a conversation between two flows.

A payment is begun under a name of its own, so that one that was begun already, before the process
was killed, is not begun again. What a step writes, and that it was done, are one commit.
"""

from __future__ import annotations

import asyncio

from postroad import MessagingService
from postroad.durable import Mail, SqliteStore, StaticDirectory, Transaction
from postroad.flows import Flow, FlowError, Flows, PeerFailed, Session, flow, responds_to

from .payments import CONFIG, Payment, make_payment, write_row
from .pipe import Orders, tell
from .records import Agreeing, Command, Ready, Resting
from .tally import Tally

TELLERS = 4
# Each teller rests so long between its payments, which leaves the disk time for the rest.
PAUSE_S = 0.1
# Looking at a payment takes a while, so that some are always under way.
LOOK_S = 0.2
CENTS_MAX = 19_000
"""What a bank takes at once."""

DEBITS, CREDITS, SETTLEMENTS, REFUNDS = "debits", "credits", "settlements", "refunds"
TABLES = (DEBITS, CREDITS, SETTLEMENTS, REFUNDS)


class Ledger:
    """The tables of a bank, as steps of flows write them."""

    def __init__(self) -> None:
        # Counts what was begun, whatever came of it.
        self.runs: Tally | None = None

    async def write(self, table: str, payment: Payment, *, tx: Transaction) -> None:
        """Write a row, in the commit of the step."""
        if self.runs is not None:
            self.runs.add()
        await write_row(tx, table, payment)


ledger = Ledger()


@flow
async def pay(flow: Flow, peer: str, payment: Payment) -> bool:
    """Take money from here and have another bank take it in; whether it did."""
    await flow.step(ledger.write, DEBITS, payment)
    session = flow.open(peer)
    try:
        await session.send_and_receive(payment, str)
    except PeerFailed:
        await flow.step(ledger.write, REFUNDS, payment)
        return False
    await flow.step(ledger.write, SETTLEMENTS, payment)
    return True


@responds_to(pay)
async def take_in(flow: Flow, session: Session) -> None:
    """Look at a payment of another bank, and take it in."""
    payment = await session.receive(Payment)
    await flow.sleep(LOOK_S)
    if payment.cents > CENTS_MAX:
        raise FlowError(f"{payment.cents} cents are too much")
    await flow.step(ledger.write, CREDITS, payment)
    await session.send("agreed")


async def agree(service: MessagingService, task: Agreeing, orders: Orders) -> None:
    """Pay and take in until told to stop."""
    ledger.runs = Tally(task.runs)
    peers = StaticDirectory({task.peer: task.address})
    async with Mail(service, SqliteStore(task.store), directory=peers, config=CONFIG) as mail:
        paid = await _open_tables(mail)
        async with Flows(mail, [pay, take_in]) as flows:
            tell(Ready(address=str(service.address)))
            async with asyncio.TaskGroup() as group:
                working = group.create_task(Bank(flows, task.peer, paid).work(orders))
                await orders.wait_for(Command.STOP)
                # A payment that has not ended by now is for the reconciliation.
                working.cancel()


async def _open_tables(mail: Mail) -> dict[str, int]:
    """Make the tables; the number of the last payment of each teller."""
    name = mail.service.name
    paid = {f"{name}-{index}": 0 for index in range(1, TELLERS + 1)}
    async with mail.transaction() as tx:
        for table in TABLES:
            await tx.execute(
                f"CREATE TABLE IF NOT EXISTS {table}"
                " (account TEXT, number INTEGER, cents INTEGER, at_s REAL)"
            )
        paid |= dict(
            await tx.execute(f"SELECT account, max(number) FROM {DEBITS} GROUP BY account")
        )
    return paid


class Bank:
    """Several tellers, each of which begins one payment after the other."""

    def __init__(self, flows: Flows, peer: str, paid: dict[str, int]) -> None:
        self._flows = flows
        self._peer = peer
        self._paid = paid
        self._is_resting = False

    async def work(self, orders: Orders) -> None:
        """Pay until told to rest; then wait until all that was begun has ended."""
        async with asyncio.TaskGroup() as group:
            for account, number in self._paid.items():
                group.create_task(self._pay_repeatedly(account, number))
            await orders.wait_for(Command.REST)
            self._is_resting = True
        tell(Resting())

    async def _pay_repeatedly(self, account: str, number: int) -> None:
        async with asyncio.TaskGroup() as payments:
            while not self._is_resting:
                number += 1
                payment = make_payment(account, number)
                handle = await self._flows.begin_as(f"{account}/{number}", pay, self._peer, payment)
                payments.create_task(handle.result())
                await asyncio.sleep(PAUSE_S)
