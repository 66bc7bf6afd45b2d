"""What ends, drains or throws away something: asked first, done at the node, told if it fails."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.browser.stage import RunningNode, running_node
from tests.browser.watcher import WAIT_MS, Dashboard

pytestmark = pytest.mark.asyncio(loop_scope="session")

UNREACHABLE = ("failed net::ERR_INTERNET_DISCONNECTED", "console Failed to load resource: net::ERR")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def delta(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningNode]:
    """A node that may come to an end."""
    settings = {"node.cluster": "alone"}
    async with running_node("delta", tmp_path_factory.mktemp("delta"), settings) as node:
        yield node


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, delta: RunningNode) -> AsyncIterator[Dashboard]:
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(WAIT_MS)
    opened = Dashboard(await context.new_page(), delta.url)
    yield opened
    await context.close()
    assert opened.problems == []


async def cells_of(node: RunningNode) -> dict[str, str]:
    return {it["name"]: it["state"] for it in await node.call("cells.ps")}


async def fail_unreachable(page: Dashboard, operation: str, confirm: str) -> None:
    """Confirm what the node cannot hear of."""
    page.expected = UNREACHABLE
    await page.press(operation)
    await page.page.context.set_offline(True)
    await page.confirm(confirm)
    await page.expect_toast("No answer from the node")
    await page.expect_toast("It may have stopped, or the network")
    await page.page.context.set_offline(False)
    await expect(page.page.locator(".connection.live")).to_be_visible(timeout=WAIT_MS)
    await page.page.locator(".toast.failing").get_by_label("Dismiss").click()


async def test_a_cell_is_drained_and_then_killed(page: Dashboard, delta: RunningNode) -> None:
    page.expected = ("404 ", "console Failed to load resource")
    await page.enter("/cells/relay")
    assert await page.command("cells.drain") == "postroad cells drain relay@delta"
    await page.press("cells.drain")
    await page.expect_toast("relay is drained")
    assert (await cells_of(delta))["relay"] == "draining"
    await page.expect_refusal("cells.drain", "It is draining already.")
    assert await page.command("cells.kill") == "postroad cells kill relay@delta"
    await page.press("cells.kill")
    await page.expect_text("dialog", "Kill relay@delta?")
    await page.expect_text("dialog", "1 cell is stopped, with 0 messages that wait for it")
    await page.page.locator("dialog .cancel").click()
    assert "relay" in await cells_of(delta)
    await page.press("cells.kill")
    # Somebody else is faster.
    await delta.call("cells.kill", cell="relay")
    await page.confirm("Kill 1 cell")
    await page.expect_toast("relay")
    await expect(page.page.locator(".toast.failing")).to_be_visible(timeout=WAIT_MS)
    await page.expect_text("main", "No cell of this node is called “relay”")


async def test_a_cell_is_killed(page: Dashboard, delta: RunningNode) -> None:
    await page.enter("/cells/parrot")
    await page.press("cells.kill")
    await page.confirm("Kill 1 cell")
    await page.expect_toast("parrot is removed")
    assert "parrot" not in await cells_of(delta)


async def test_cells_of_the_domain_itself_are_left_alone(page: Dashboard) -> None:
    await page.enter("/cells/System")
    await page.expect_refusal("cells.kill", "It belongs to the domain itself.")
    await page.expect_refusal("cells.drain", "It belongs to the domain itself.")


async def test_flows_are_drained_and_undrained(page: Dashboard, delta: RunningNode) -> None:
    await page.enter("/flows")
    await page.expect_refusal("flow.undrain", "New flows are begun as it is: nobody drained them.")
    assert await page.command("flow.drain") == "postroad flow drain"
    await fail_unreachable(page, "flow.drain", "Drain")
    assert not (await delta.call("flow.counts"))["is_draining"]
    await page.press("flow.drain")
    await page.expect_text("dialog", "Begin no new flows?")
    await page.field("Wait at most, seconds").fill("0.5")
    await page.confirm("Drain")
    await page.expect_toast("0 flows still at work")
    assert (await delta.call("flow.counts"))["is_draining"]
    await page.expect_text(".notice.warning", "No new flows are begun here.")
    await page.expect_refusal("flow.drain", "They are drained already.")
    assert await page.command("flow.undrain") == "postroad flow undrain"
    await page.press("flow.undrain")
    await page.expect_toast("New flows are begun again")
    assert not (await delta.call("flow.counts"))["is_draining"]
    await expect(page.page.locator(".notice.warning")).to_have_count(0, timeout=WAIT_MS)


async def test_a_schedule_is_removed(page: Dashboard, delta: RunningNode) -> None:
    page.expected = ("404 ", "console Failed to load resource")
    await page.enter("/flows?tab=schedules")
    row = page.row("nightly")
    assert await page.command("flow.unschedule", row) == "postroad flow unschedule nightly"
    await page.press("flow.unschedule", row)
    await page.expect_text("dialog", "1 schedule is forgotten; flows that it has begun go on.")
    await page.page.locator("dialog .cancel").click()
    assert [it["name"] for it in await delta.call("flow.schedules")] == ["hourly", "nightly"]
    await page.press("flow.unschedule", row)
    await page.confirm("Remove 1 schedule")
    await expect(row).to_have_count(0, timeout=WAIT_MS)
    assert [it["name"] for it in await delta.call("flow.schedules")] == ["hourly"]
    await page.press("flow.unschedule", page.row("hourly"))
    await delta.call("flow.unschedule", name="hourly")
    await page.confirm("Remove 1 schedule")
    await page.expect_toast("hourly")
    await expect(page.page.locator(".toast.failing")).to_be_visible(timeout=WAIT_MS)
    await page.expect_text("main", "No schedules.")


async def test_a_bridge_is_begun_anew_and_purged(page: Dashboard, delta: RunningNode) -> None:
    for body in ("one", "two"):
        await delta.call("queue.post", queue="letters", peer="nowhere", body=body)
    await page.enter("/bridges/nowhere")
    await page.expect_text(".facts", "no member is called nowhere")
    before = (await delta.call("bridge.show", peer="nowhere"))["epoch"]
    assert await page.command("bridge.reset") == "postroad bridge reset nowhere"
    await fail_unreachable(page, "bridge.reset", "Reset and send 2 messages")
    assert (await delta.call("bridge.show", peer="nowhere"))["epoch"] == before
    await page.press("bridge.reset")
    await page.expect_text("dialog", "Only after a store was restored from a backup")
    await page.confirm("Reset and send 2 messages")
    await page.expect_toast("a new beginning")
    assert (await delta.call("bridge.show", peer="nowhere"))["epoch"] > before
    assert await page.command("bridge.purge") == "postroad bridge purge nowhere"
    await page.press("bridge.purge")
    await page.expect_text("dialog", "2 messages are thrown away")
    await page.page.locator("dialog .cancel").click()
    assert len(await delta.call("bridge.peek", peer="nowhere")) == 2
    await page.press("bridge.purge")
    await page.confirm("Purge 2 messages")
    await page.expect_toast("2 messages thrown away")
    assert await delta.call("bridge.peek", peer="nowhere") == []
    assert (await delta.call("bridge.show", peer="nowhere"))["depth"] == 0
    await page.expect_refusal("bridge.purge", "Nothing waits for it.")


async def test_a_node_is_drained(page: Dashboard, delta: RunningNode) -> None:
    await page.enter("/nodes/delta")
    assert await page.command("node.drain") == "postroad node drain"
    await fail_unreachable(page, "node.drain", "Drain")
    assert (await delta.call("node.show"))["state"] == "running"
    await page.press("node.drain")
    await page.expect_text("dialog", "Only a new start takes it back.")
    await page.field("Wait at most, seconds").fill("0.5")
    await page.confirm("Drain")
    await page.expect_toast("still at work")
    assert (await delta.call("node.show"))["state"] == "draining"
    await page.expect_refusal("node.drain", "It is draining already.")
