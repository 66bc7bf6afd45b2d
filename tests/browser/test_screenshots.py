"""The pictures of the documentation, taken of nodes at work: POSTROAD_SCREENSHOTS=1 makes them."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser.stage import RunningNode
from tests.browser.watcher import WAIT_MS, Dashboard

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

IMAGES = Path(__file__).parents[2] / "docs/images"
# Until the small charts have something to show.
WORK_S = 60
ITEMS = ("tea", "honey", "paper", "rope", "sail")


async def test_take_pictures(dashboard: Dashboard, alpha: RunningNode, beta: RunningNode) -> None:
    flow = await busy(alpha)
    await dashboard.page.emulate_media(color_scheme="light")
    await dashboard.enter()
    trading = asyncio.create_task(trade(alpha))
    await asyncio.sleep(WORK_S)
    await take(dashboard, "/overview", "overview")
    await take(dashboard, "/pipelines/sums", "pipeline")
    trading.cancel()
    await take(dashboard, f"/flows/{flow}", "flow")
    await take(dashboard, "/dead", "dead")
    await take(dashboard, "/queues/parcels", "queue")
    await dashboard.go("/services/greeter.hello")
    await dashboard.page.get_by_label("name *").fill("Ada")
    await dashboard.page.get_by_label("times").fill("2")
    await dashboard.button("service.call").click()
    await dashboard.expect_text("pre.code", "Hello Ada!")
    await take(dashboard, None, "call")
    await dashboard.page.emulate_media(color_scheme="dark")
    await dashboard.go("/map")
    await dashboard.page.get_by_role("button", name="node alpha, ok").click()
    await take(dashboard, None, "map")


async def take(dashboard: Dashboard, route: str | None, name: str) -> None:
    if route is not None:
        await dashboard.go(route)
    await expect(dashboard.page.locator(".toast")).to_have_count(0, timeout=WAIT_MS)
    await dashboard.page.mouse.move(640, 790)
    await dashboard.page.screenshot(path=IMAGES / f"dashboard-{name}.png")


async def busy(alpha: RunningNode) -> str:
    """Give a node something of everything; the flow to look at."""
    await alpha.call("job.submit", job="sums")
    for number, item in enumerate(ITEMS * 2):
        body = {"item": item, "count": number + 1}
        await alpha.call("queue.post", queue="orders", body=body)
        parcel = {"parcel": number, "to": "Lübeck", "weight": 2.5}
        await alpha.call("queue.post", queue="parcels", body=parcel, key=item)
        await alpha.begin("buy", item=item, count=2)
    await alpha.call("queue.post", queue="letters", peer="beta", body="hello")
    await alpha.begin("deliver", item="anchor")
    await alpha.begin("take_back", item="honey")
    await alpha.begin("approve", order={"item": "tent", "count": 1})
    return await alpha.begin("buy", item="tea", count=4)


async def trade(alpha: RunningNode) -> None:
    """Have a little to do, and not always the same."""
    for number in range(10_000):
        greeting = {"name": "Ann", "times": 1}
        params = {"action": "greeter.hello", "params": greeting, "node_id": "beta"}
        await alpha.call("service.call", **params)
        if number % 50 < 25:
            await alpha.call("queue.post", queue="letters", peer="beta", body={"n": number})
        await asyncio.sleep(0.01)
