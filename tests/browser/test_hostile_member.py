"""A member of the cluster that answers operators with what would become a page of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from playwright.async_api import expect

from postroad.admin.operations import OPERATIONS
from postroad.admin.remote import SUBJECT, Answer, Ask
from postroad.cluster import ClusterAgent, ClusterMessaging, Member, StaticDiscovery
from postroad.net import MessagingService
from tests.browser.stage import CLUSTER, RunningNode
from tests.browser.test_pages import PAGES
from tests.browser.watcher import Dashboard
from tests.support.deadlines import eventually
from tests.support.tiers import sample

pytestmark = pytest.mark.asyncio(loop_scope="session")

ELSEWHERE = {"http-equiv": "refresh", "content": "0;url=http://127.0.0.1:1/"}
FORGED = {
    "tag": "section",
    "props": {"class": "forged", "style": {"position": "fixed", "inset": 0}},
    "children": [
        {"tag": "", "text": "Your token has expired. Type it here:"},
        {"tag": "meta", "props": ELSEWHERE, "children": []},
    ],
}
IDENTIFIERS = frozenset({"id", "name", "queue", "member", "peer", "key"})


def forge(kind: Any, *, is_typed: bool) -> Any:
    """A result that has an element of a page wherever the type, or nobody, allows one."""
    if isinstance(kind, inspect.StructType):
        return {
            it.encode_name: "rogue"
            if it.name in IDENTIFIERS and is_typed
            else forge(it.type, is_typed=is_typed)
            for it in kind.fields
        }
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return [forge(kind.item_type, is_typed=is_typed)]
    if isinstance(kind, inspect.DictType):
        return {"rogue": forge(kind.value_type, is_typed=is_typed)}
    if isinstance(kind, inspect.UnionType):
        inner = [it for it in kind.types if not isinstance(it, inspect.NoneType)]
        return forge(inner[0], is_typed=is_typed)
    if isinstance(kind, inspect.AnyType) or not is_typed:
        return FORGED
    return forge_plain(kind)


def forge_plain(kind: Any) -> Any:
    if isinstance(kind, inspect.LiteralType):
        return kind.values[0]
    if isinstance(kind, inspect.EnumType):
        return next(iter(kind.cls)).value
    plain = {inspect.IntType: 1, inspect.FloatType: 1.0, inspect.BoolType: True}
    return plain.get(type(kind), "rogue")


@asynccontextmanager
async def running_rogue(alpha: RunningNode, *, is_typed: bool) -> AsyncIterator[list[str]]:
    """A member `rogue` of alpha's cluster; yields the operations that it was asked for."""
    asked: list[str] = []

    def answer(ask: Ask, member: Member) -> Answer:
        asked.append(ask.operation)
        kind = inspect.type_info(OPERATIONS[ask.operation].result)
        forged = forge(kind, is_typed=is_typed)
        if is_typed:
            msgspec.convert(forged, OPERATIONS[ask.operation].result)
        return Answer(msgspec.Raw(msgspec.msgpack.encode(forged)))

    contact = (await alpha.call("node.show"))["address"]
    async with (
        MessagingService(CLUSTER, "rogue") as service,
        ClusterAgent(service, StaticDiscovery([contact])) as agent,
    ):
        ClusterMessaging(agent).serve(
            SUBJECT,
            answer,
            decoder=msgspec.msgpack.Decoder(Ask).decode,
            encoder=msgspec.msgpack.encode,
        )

        async def is_known() -> bool:
            return "rogue" in [it["name"] for it in await alpha.call("cluster.ls")]

        await eventually(is_known, "alpha knows the rogue")
        yield asked


async def expect_nothing_forged(dashboard: Dashboard, url: str) -> None:
    await expect(dashboard.page.locator(".forged, meta[http-equiv]")).to_have_count(0)
    assert dashboard.page.url.startswith(url)


@pytest.mark.parametrize("is_typed", [False, True])
async def test_answers_of_a_hostile_member_never_become_elements_of_the_page(
    dashboard: Dashboard, alpha: RunningNode, is_typed: bool
) -> None:
    dashboard.expected = ("409 ", "500 ", "502 ", "503 ", "console Failed to load resource")
    async with running_rogue(alpha, is_typed=is_typed) as asked:
        await dashboard.enter("/overview")
        routes = {it.partition("?")[0] for it in PAGES} - {"/nodes/alpha"}
        shown = ("/queues", "/nodes/rogue?tab=config", "/services/greeter.hello")
        for route in (*shown, *sample(sorted(routes), 6)):
            sign = "&" if "?" in route else "?"
            asked.clear()
            await dashboard.go(f"{route}{sign}node=rogue")
            await eventually(lambda: bool(asked), f"the rogue is asked at {route}")
            await expect_nothing_forged(dashboard, alpha.url)
            if not is_typed and route == "/queues":
                await dashboard.expect_text("main", "with something else than its result")
        await dashboard.leave()


async def test_data_where_a_page_expects_a_text_is_shown_as_text(dashboard: Dashboard) -> None:
    await dashboard.enter("/overview")
    text, elements = await dashboard.page.evaluate(
        """async (forged) => {
          const { h, render } = await import("/js/dom.js");
          const place = document.createElement("div");
          render(place, forged, [[forged]], h("p", null, forged, h("b", null, "made here")));
          return [place.textContent, [...place.querySelectorAll("*")].map((it) => it.tagName)];
        }""",
        FORGED,
    )
    assert elements == ["P", "B"]
    assert text.count('{"tag":"section"') == 3
