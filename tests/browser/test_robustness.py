"""What goes wrong around a page, and what is too much for it: it says so, and goes on."""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Request, expect

from tests.browser.stage import READ_TOKEN, RunningNode, running_node
from tests.browser.test_pages import PAGES
from tests.browser.watcher import WAIT_MS, Dashboard
from tests.support.tiers import by_tier, sample

pytestmark = pytest.mark.asyncio(loop_scope="session")

MANY = by_tier(test=2_000, nightly=10_000)
AWAY = ("failed ", "console Failed to load resource: net::ERR")
REFUSED = ("401 ", "console Failed to load resource: the server responded with a status of 401")
NAMES = (
    "<script>document.title='broken'</script>",
    'it\'s"quoted"&amp;',
    "Gemüse/秋刀魚/🐟",
    "100%/../?node=x#y",
    "long-" + "x" * 240,
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def flooded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningNode]:
    """A node with more dead letters than anybody can look at."""
    settings = {"node.cluster": "wet"}
    async with running_node("flooded", tmp_path_factory.mktemp("flooded"), settings) as node:
        await node.call("service.call", action="shop.flood", params={"count": MANY})
        await node.dead_of(MANY)
        yield node


# The node is away, or is another one.


async def test_a_node_that_is_away_is_told_of_and_found_again_without_a_reload(
    dashboard: Dashboard, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dashboard.expected = AWAY
    directory = tmp_path_factory.mktemp("epsilon")
    async with running_node("epsilon", directory, {}) as epsilon:
        dashboard.url = epsilon.url
        await dashboard.enter("/queues/receipts")
        await (
            dashboard.page.get_by_label("Filter messages")
            .or_(dashboard.page.get_by_role("searchbox"))
            .first.fill("half a wo")
        )
        await dashboard.expect_text(".facts", "consumed")
        epsilon.process.send_signal(signal.SIGKILL)
        await epsilon.process.wait()
        await dashboard.expect_text(".connection.lost", "No connection since")
        # What was known last can still be read, and nothing is done in silence.
        await dashboard.expect_text(".facts", "consumed")
        await dashboard.button("queue.pause").click()
        await dashboard.expect_toast("No answer from the node")
    bind = {"admin.bind": epsilon.url.removeprefix("http://")}
    async with running_node("epsilon", directory, bind):
        await expect(dashboard.page.locator(".connection.live")).to_be_visible(timeout=WAIT_MS)
        handled = dashboard.page.locator(".facts dd").nth(4)
        before = await handled.inner_text()
        await expect(handled).not_to_have_text(before, timeout=WAIT_MS)
        await expect(dashboard.page.get_by_role("searchbox").first).to_have_value("half a wo")


async def test_a_token_that_is_no_longer_good_is_asked_for_where_one_was(
    dashboard: Dashboard, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dashboard.expected = (*AWAY, *REFUSED)
    directory = tmp_path_factory.mktemp("zeta")
    async with running_node("zeta", directory, {}) as zeta:
        dashboard.url = zeta.url
        await dashboard.enter("/queues/receipts")
    settings = {"admin.bind": zeta.url.removeprefix("http://"), "admin.read_token": ""}
    other = "token-that-was-made-anew"
    async with running_node("zeta", directory, settings, token=other):
        field = dashboard.page.get_by_label("Token")
        await expect(field).to_be_focused(timeout=WAIT_MS)
        await field.fill(other)
        await field.press("Enter")
        await dashboard.expect_text("h1", "receipts")
        await expect(dashboard.page.locator(".connection.live")).to_be_visible(timeout=WAIT_MS)


async def test_who_may_only_look_can_press_nothing_on_any_page(dashboard: Dashboard) -> None:
    await dashboard.enter("/overview", READ_TOKEN)
    reason = "Your token may look, but not change anything."
    seen = set()
    for route in PAGES:
        await dashboard.go(route)
        for button in await dashboard.page.locator("main [data-operation]").all():
            operation = await button.get_attribute("data-operation")
            if operation in ("cells.ping", "cells.traceroute", "flow.query"):
                continue
            seen.add(operation)
            assert await button.get_attribute("aria-disabled") == "true", (route, operation)
            assert await button.get_attribute("title") == reason
    assert len(seen) > 15
    await dashboard.go("/services/greeter.hello")
    await dashboard.page.get_by_label("name *").fill("Ada")
    await dashboard.page.keyboard.press("Enter")
    await dashboard.expect_toast(reason)
    await dashboard.expect_text("main", "What the action answers is shown here")


async def test_clocks_that_differ_are_told_of_and_times_are_those_of_the_node(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    id = await alpha.begin("approve", order={"item": "clock", "count": 1})
    await dashboard.page.clock.install(time=time.time() + 3 * 3600)
    await dashboard.enter(f"/flows/{id}")
    await expect(dashboard.page.locator("header .badge")).to_have_text("clocks differ")
    await dashboard.expect_text(".facts", "Since")
    since = await dashboard.page.locator("dt:has-text('Since') + dd").inner_text()
    assert "h" not in since, "it was begun a moment ago, whatever this machine thinks"
    await expect(dashboard.page.locator("header .badge")).to_have_attribute(
        "title", re.compile(r"is (2 h 59 min|3 h 0 min) behind")
    )


async def test_clocks_that_agree_are_no_news(dashboard: Dashboard) -> None:
    await dashboard.enter("/queues")
    await expect(dashboard.page.locator("header .badge")).to_have_count(0)


# Too much of something.


async def test_thousands_of_dead_letters(dashboard: Dashboard, flooded: RunningNode) -> None:
    dashboard.url = flooded.url
    await dashboard.enter("/dead")
    retry = dashboard.button("dlq.retry")
    await expect(retry).to_have_text(f"Retry all {MANY:,} letters", timeout=WAIT_MS)
    await dashboard.expect_text(".pager", f"200 of {MANY:,} are shown.")
    letters = dashboard.page.get_by_role("region", name="dead letters").locator("tbody tr")
    await expect(letters).to_have_count(200, timeout=WAIT_MS)
    reasons = dashboard.page.get_by_role("region", name="reasons").locator("tbody tr")
    await expect(reasons).to_have_count(200)
    await dashboard.page.get_by_role("button", name="Show more").click()
    await expect(reasons).to_have_count(400)
    first = await letters.first.inner_text()
    await dashboard.page.get_by_role("link", name="More", exact=True).click()
    await expect(letters.first).not_to_have_text(first, timeout=WAIT_MS)
    await dashboard.button("dlq.drop").click()
    await dashboard.expect_text("dialog", f"{MANY:,} dead letters are forgotten for good.")
    await dashboard.confirm(f"Drop {MANY:,} letters")
    await dashboard.expect_toast(f"{MANY:,} letters dropped")
    await dashboard.expect_text("main", "No dead letters.")
    assert (await flooded.call("dlq.count"))["count"] == 0


async def test_a_message_of_a_megabyte(dashboard: Dashboard, alpha: RunningNode) -> None:
    # As much as the node takes in one request.
    for body in ("x" * 1_040_000, {"list": ["y" * 97] * 10_399}):
        await alpha.call("queue.post", queue="large-ones", body=body)
    await alpha.call("queue.post", queue="large-ones", body="small")
    await dashboard.enter("/queues/large-ones")
    beginning = dashboard.page.get_by_text("This is the beginning; all of it is 1015")
    await expect(beginning).to_have_count(2, timeout=WAIT_MS)
    await expect(dashboard.row("small")).not_to_contain_text("This is the beginning")
    row = dashboard.row("xxxx")
    await row.locator("summary").first.click()
    shown = await row.locator("pre").first.inner_text()
    assert len(shown) < 20_000
    too_wide = "document.documentElement.scrollWidth - innerWidth"
    assert await dashboard.evaluate(too_wide) <= 0


@pytest.mark.parametrize("name", sample(NAMES, 2))
async def test_names_of_all_kinds(dashboard: Dashboard, alpha: RunningNode, name: str) -> None:
    await alpha.call("queue.post", queue=name, body=name, key=name, headers={name: name})
    await dashboard.enter("/queues")
    await dashboard.page.locator("tbody").get_by_role("link", name=name, exact=True).click()
    await dashboard.expect_text("h1", name)
    await dashboard.button("queue.pause").click()
    await dashboard.expect_text(".facts", "paused")
    assert (await alpha.call("queue.show", queue=name))["is_paused"]
    await dashboard.page.reload()
    await dashboard.expect_text("h1", name)
    await dashboard.go("/map")
    box = dashboard.page.locator(".box.queue", has=dashboard.page.locator("title", has_text=name))
    await box.click()
    await dashboard.expect_text(".map .panel h2", name)
    await dashboard.page.get_by_text("Open its page").click()
    await dashboard.expect_text("h1", name)
    assert "broken" not in await dashboard.page.title()
    await dashboard.go("/overview")
    too_wide = "document.documentElement.scrollWidth - innerWidth"
    assert await dashboard.evaluate(too_wide) <= 0
    await alpha.call("queue.purge", queue=name)
    await alpha.call("queue.resume", queue=name)


# Streams.


async def test_pages_in_quick_succession_leave_one_stream(dashboard: Dashboard) -> None:
    streams = Streams(dashboard)
    await dashboard.enter()
    for _ in range(3):
        for route in PAGES:
            await dashboard.page.evaluate("to => { location.hash = to }", f"#{route}")
    await dashboard.go("/queues")
    await dashboard.expect_text("main", "receipts")
    await streams.settle_at(1)
    assert streams.opened > len(PAGES)
    # A tab that nobody sees has none.
    await dashboard.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    await streams.settle_at(0)
    await dashboard.evaluate(
        "delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))"
    )
    await streams.settle_at(1)


class Streams:
    """Counts the streams of changes that a page has open."""

    def __init__(self, dashboard: Dashboard) -> None:
        self.open: set[Request] = set()
        self.opened = 0
        self._changed = asyncio.Event()
        dashboard.page.on("request", self._on_request)
        dashboard.page.on("requestfinished", self._on_end)
        dashboard.page.on("requestfailed", self._on_end)

    def _on_request(self, request: Request) -> None:
        if "/watch?" in request.url:
            self.opened += 1
            self.open.add(request)
            self._changed.set()

    def _on_end(self, request: Request) -> None:
        self.open.discard(request)
        self._changed.set()

    async def settle_at(self, count: int) -> None:
        async with asyncio.timeout(WAIT_MS / 1000):
            while len(self.open) != count:
                self._changed.clear()
                await self._changed.wait()
