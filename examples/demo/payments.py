"""What nodes with mail do: one pays, the other books it and sends a receipt, which the first files.

Every step writes a row into a table of the node's own, in the transaction that posts or handles the
message, so that a row without its message, or a message without its row, cannot be. The tables
have no unique keys: a message that was handled twice would be seen there twice.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from postroad import MessagingService
from postroad.durable import Mail, MailConfig, Message, SqliteStore, StaticDirectory, Transaction

from .pipe import Orders, tell
from .records import Command, Mailing, Ready, Resting
from .tally import Tally

ACCOUNTS = 32
PAYMENTS, RECEIPTS = "payments", "receipts"
# Each account rests so long between its payments, which leaves the disk time for the rest.
PAUSE_S = 0.02
# Messages of one account wait for each other, those of different accounts do not.
CONCURRENCY = 4
# Short pauses for a peer that is away, so that the demo need not wait for its return.
CONFIG = MailConfig(bridge_first_s=0.05, bridge_max_s=0.2)

_COLUMNS = "account TEXT, number INTEGER, cents INTEGER, at_s REAL"


class Payment(msgspec.Struct, frozen=True, array_like=True):
    """The body of a payment and of its receipt."""

    account: str
    number: int
    """Counts the payments of the account."""
    cents: int


def make_payment(account: str, number: int) -> Payment:
    """Amounts look like any, and are the same in every run."""
    return Payment(account, number, number * 7_919 % 20_000 + 1)


async def exchange_mail(service: MessagingService, task: Mailing, orders: Orders) -> None:
    """Pay or book until told to stop."""
    peers = StaticDirectory({task.peer: task.address})
    async with Mail(service, SqliteStore(task.store), directory=peers, config=CONFIG) as mail:
        office = Payer(mail, task) if task.pays else Booker(mail, task)
        await office.open()
        tell(Ready(address=str(service.address)))
        await office.work(orders)
        await orders.wait_for(Command.STOP)


class Office:
    """What both nodes have: a store, and a handler that leaves a row for each message."""

    table: str
    queue: str

    def __init__(self, mail: Mail, task: Mailing) -> None:
        self._mail = mail
        self._peer = task.peer
        self._runs = Tally(task.runs)

    async def open(self) -> None:
        """Make the tables, and handle what comes."""
        async with self._mail.transaction() as tx:
            await self.prepare(tx)
        await self._mail.consume(self.queue, self.handle, concurrency=CONCURRENCY)

    async def prepare(self, tx: Transaction) -> None:
        await tx.execute(f"CREATE TABLE IF NOT EXISTS {self.table} ({_COLUMNS})")

    async def handle(self, message: Message, tx: Transaction) -> None:
        self._runs.add()
        payment = msgspec.json.decode(message.body, type=Payment)
        await write_row(tx, self.table, payment)

    async def work(self, orders: Orders) -> None:
        """Do what is not done by handlers."""


class Booker(Office):
    """Books payments, and sends a receipt for each."""

    table, queue = "bookings", PAYMENTS

    async def handle(self, message: Message, tx: Transaction) -> None:
        await super().handle(message, tx)
        tx.post(message.sender, RECEIPTS, message.body, key=message.key)


class Payer(Office):
    """Pays from several accounts at once, and files the receipts."""

    table, queue = "receipts", RECEIPTS

    def __init__(self, mail: Mail, task: Mailing) -> None:
        super().__init__(mail, task)
        self._paid = {f"account-{index}": 0 for index in range(1, ACCOUNTS + 1)}
        self._is_resting = False

    async def prepare(self, tx: Transaction) -> None:
        await super().prepare(tx)
        await tx.execute(f"CREATE TABLE IF NOT EXISTS payments ({_COLUMNS})")
        # Where it stopped when it was killed: what has no row was not posted either.
        for account, number in await tx.execute(
            "SELECT account, max(number) FROM payments GROUP BY account"
        ):
            self._paid[account] = number

    async def work(self, orders: Orders) -> None:
        async with asyncio.TaskGroup() as group:
            for account, number in self._paid.items():
                group.create_task(self._pay_repeatedly(account, number))
            await orders.wait_for(Command.REST)
            self._is_resting = True
        tell(Resting())

    async def _pay_repeatedly(self, account: str, number: int) -> None:
        while not self._is_resting:
            number += 1
            await self._pay(make_payment(account, number))
            await asyncio.sleep(PAUSE_S)

    async def _pay(self, payment: Payment) -> None:
        async with self._mail.transaction() as tx:
            await write_row(tx, "payments", payment)
            tx.post(self._peer, PAYMENTS, msgspec.json.encode(payment), key=payment.account)


async def write_row(tx: Transaction, table: str, payment: Payment) -> None:
    """Note a payment in a table, with the time on the clock that all processes share."""
    row = (payment.account, payment.number, payment.cents, time.monotonic())
    await tx.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", row)
