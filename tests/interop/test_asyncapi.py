"""AsyncAPI documents are read by the official parser, which has nothing against them."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from postroad import App, Queue, Service, Transaction, action, consumer, event
from postroad.admin.schemas import queue_channels
from postroad.services import Context
from postroad.services.asyncapi import asyncapi_document
from tests.support.services.javascript import HERE, find_program, installed_packages

PACKAGES = {"@asyncapi/parser": "3.6.3"}


class Card(msgspec.Struct, tag=True):
    number: str


class Cash(msgspec.Struct, tag=True):
    amount: int


class Order(msgspec.Struct):
    """What somebody wants."""

    item: str
    paid_by: Card | Cash
    placed_at: datetime.datetime
    replaces: Order | None = None


class Invoice(pydantic.BaseModel):
    total: int
    lines: dict[str, list[int]] = {}
    follows: Invoice | None = None


ORDERS, PARCELS = Queue("orders/📦", Order), Queue("parcels", Card | Cash)  # type: ignore[arg-type] # A union.
INVOICES = Queue("invoices", Invoice)


@consumer(ORDERS)
async def bill(order: Order, tx: Transaction) -> None:
    """Write the invoice.

    Once.
    """


class Shop(Service):
    name = "shop"

    @action
    async def order(self, ctx: Context, item: str, paid_by: Card | Cash) -> Order | None:
        """Order something."""

    @event("order.*")
    async def on_order(self, ctx: Context) -> None: ...


@pytest.fixture
def parser(request: pytest.FixtureRequest) -> Path:
    assert request.config.cache is not None
    return installed_packages(request.config.cache, PACKAGES)


def parse(modules: Path, document: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [find_program("node"), str(HERE / "asyncapi.js")],
        input=json.dumps(document),
        env={**os.environ, "NODE_PATH": str(modules)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def document() -> dict[str, Any]:
    app = App(queues=[ORDERS, PARCELS, INVOICES], consumers=[bill])
    return asyncapi_document([Shop()], queues=queue_channels(app), title="Shop")


def test_document_of_services_and_queues_is_valid(parser: Path) -> None:
    result = parse(parser, document())
    assert result["errors"] == []
    assert sorted(result["operations"]) == [
        "receive order.*",
        "receive orders/📦",
        "receive shop.order",
        "send invoices",
        "send parcels",
    ]


def test_parser_refuses_what_is_wrong(parser: Path) -> None:
    wrong = document()
    wrong["channels"]["queue.invoices"]["messages"]["message"]["payload"]["$ref"] += "Gone"
    assert parse(parser, wrong)["errors"]


def test_queue_is_described_by_its_consumer() -> None:
    operation = document()["operations"]["queue.orders_"]
    assert operation["summary"] == "Write the invoice."
    assert operation["description"] == "Once."
