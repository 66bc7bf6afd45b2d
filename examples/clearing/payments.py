"""Payments: they look like any, and are the same in every run."""

from __future__ import annotations

import msgspec

BANKS = ("bank-a", "bank-b")
HOUSE = "house"
ACCOUNTS = 8
"""Accounts of each bank."""
TAKEN_CENTS_MAX = 19_000
"""What a bank takes in at once; more is refused by its flow."""
LARGE_CENTS = 18_000
"""What the clearing house tells of."""
BAD_EVERY = 40
"""One payment of so many has a purpose that nobody may clear."""


class Payment(msgspec.Struct, frozen=True, kw_only=True):
    """Money from an account here to one of the other bank."""

    bank: str
    account: str
    number: int
    """Counts the payments of the account."""
    cents: int
    purpose: str = "rent"

    @property
    def id(self) -> str:
        """What it is called everywhere."""
        return f"{self.account}/{self.number}"

    @property
    def is_bad(self) -> bool:
        """Whether the job refuses it, however often it comes."""
        return self.purpose == "bribe"


def make_payment(bank: str, account: str, number: int) -> Payment:
    """The payment of an account that has this number."""
    index = int(account.rpartition("-")[2])
    cents = (number * 7_919 + index * 3_571) % 20_000 + 1
    is_bad = (number + index) % BAD_EVERY == 0 and cents <= TAKEN_CENTS_MAX
    purpose = "bribe" if is_bad else "rent"
    return Payment(bank=bank, account=account, number=number, cents=cents, purpose=purpose)


def accounts_of(bank: str) -> list[str]:
    """The accounts that a bank has."""
    return [f"{bank}-{index}" for index in range(1, ACCOUNTS + 1)]
