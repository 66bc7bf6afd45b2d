"""Who may look, who may change, and what is seen when the node is away."""

import asyncio
import re
import signal

import pytest
from playwright.async_api import expect

from tests.browser.stage import READ_TOKEN, TOKEN, RunningNode, running_node
from tests.browser.watcher import WAIT_MS, Dashboard

pytestmark = pytest.mark.asyncio(loop_scope="session")

REFUSED = ("401 ", "console Failed to load resource: the server responded with a status of 401")


async def test_without_a_token_it_is_asked_for(dashboard: Dashboard) -> None:
    dashboard.expected = REFUSED
    await dashboard.page.goto(f"{dashboard.url}/#/queues")
    field = dashboard.page.get_by_label("Token")
    await expect(field).to_be_focused()
    await field.fill("a-token-of-some-other-node")
    await field.press("Enter")
    await dashboard.expect_text("main [role=alert]", "This is not the token of this node")
    await field.fill(TOKEN)
    await field.press("Enter")
    await dashboard.expect_text("h1", "Queues")
    await expect(dashboard.page.locator(".connection.live")).to_be_visible(timeout=WAIT_MS)


async def test_a_wrong_token_in_the_address_is_asked_for_again(dashboard: Dashboard) -> None:
    dashboard.expected = REFUSED
    await dashboard.page.goto(f"{dashboard.url}/#token=a-token-of-some-other-node")
    await expect(dashboard.page.get_by_label("Token")).to_be_visible(timeout=WAIT_MS)
    assert "token" not in dashboard.page.url


async def test_who_may_only_look_sees_why_nothing_can_be_pressed(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    id = await alpha.begin("approve", order={"item": "reading", "count": 1})
    await dashboard.enter("/queues/receipts", READ_TOKEN)
    await dashboard.expect_text("header", "read only")
    for operation in ("queue.post", "queue.pause", "queue.purge", "queue.move"):
        button = dashboard.button(operation)
        await expect(button).to_be_disabled()
        await expect(button).to_have_attribute(
            "title", "Your token may look, but not change anything."
        )
    await dashboard.go(f"/flows/{id}")
    await expect(dashboard.button("flow.kill")).to_be_disabled()
    await dashboard.go("/services/greeter.hello")
    await expect(dashboard.button("service.call")).to_be_disabled()


async def test_changes_are_seen_without_a_reload(dashboard: Dashboard, alpha: RunningNode) -> None:
    await alpha.call("queue.post", queue="watched", body="first")
    await dashboard.enter("/queues/watched")
    await expect(dashboard.row("first")).to_be_visible(timeout=WAIT_MS)
    await alpha.call("queue.post", queue="watched", body="second")
    await expect(dashboard.row("second")).to_be_visible(timeout=WAIT_MS)
    await alpha.call("queue.pause", queue="watched")
    await dashboard.expect_text(".facts", "paused")


async def test_a_field_keeps_what_is_typed_while_the_page_changes(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    await dashboard.enter("/queues/receipts")
    field = dashboard.page.get_by_label("Filter messages").or_(
        dashboard.page.get_by_role("searchbox")
    )
    await field.first.fill("half a wo")
    handled = dashboard.page.locator(".facts dd").nth(4)
    before = await handled.inner_text()
    await expect(handled).not_to_have_text(before, timeout=WAIT_MS)
    await expect(field.first).to_have_value("half a wo")
    await expect(field.first).to_be_focused()


async def test_a_node_that_goes_away_is_marked_and_found_again_and_stopped(
    dashboard: Dashboard, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dashboard.expected = ("failed ", "console Failed to load resource: net::ERR")
    directory = tmp_path_factory.mktemp("gamma")
    async with running_node("gamma", directory, {}) as gamma:
        dashboard.url = gamma.url
        await dashboard.enter()
        gamma.process.send_signal(signal.SIGKILL)
        await gamma.process.wait()
        await expect(dashboard.page.locator(".connection.lost")).to_be_visible(timeout=WAIT_MS)
    bind = {"admin.bind": gamma.url.removeprefix("http://")}
    async with running_node("gamma", directory, bind) as again:
        await expect(dashboard.page.locator(".connection.live")).to_be_visible(timeout=WAIT_MS)
        await dashboard.expect_text(".place", "market")
        await dashboard.go("/nodes/gamma")
        await dashboard.press("node.stop")
        await dashboard.confirm("Stop gamma")
        await asyncio.wait_for(again.process.wait(), WAIT_MS / 1000)
        assert again.process.returncode == 0


async def test_another_node_is_chosen_and_stays_in_the_address(
    dashboard: Dashboard, alpha: RunningNode, beta: RunningNode
) -> None:
    await beta.call("queue.post", queue="far-away", body="hello from beta")
    await dashboard.enter("/queues")
    chooser = dashboard.page.get_by_label("Node")
    await expect(chooser.locator("option", has_text="beta")).to_have_count(1, timeout=WAIT_MS)
    await chooser.select_option("beta")
    await dashboard.expect_text("main", "far-away")
    assert dashboard.page.url.endswith("#/queues?node=beta")
    await expect(dashboard.page).to_have_title(re.compile("market/beta - Queues"))
    await dashboard.row("far-away").locator("a").click()
    await dashboard.expect_text("main", "hello from beta")
    await dashboard.press("queue.pause")
    await dashboard.expect_text(".facts", "paused")
    assert (await beta.call("queue.show", queue="far-away"))["is_paused"]
    await dashboard.page.reload()
    await dashboard.expect_text("main", "hello from beta")
    await expect(chooser).to_have_value("beta")


async def test_from_a_node_that_is_none_there_is_a_way_back(
    dashboard: Dashboard, beta: RunningNode
) -> None:
    await dashboard.enter("/queues?node=nowhere")
    await dashboard.expect_text(".notice.failing", "no member 'nowhere'")
    await dashboard.page.get_by_label("Node").select_option("alpha")
    await dashboard.expect_text("main", "receipts")


async def test_a_change_of_a_node_that_forbids_it_is_told(
    dashboard: Dashboard, alpha: RunningNode, beta: RunningNode
) -> None:
    dashboard.expected = ("403 ", "console Failed to load resource")
    await alpha.call("queue.post", queue="guarded", body="hello")
    dashboard.url = beta.url
    await dashboard.enter("/queues/guarded?node=alpha")
    await dashboard.press("queue.pause")
    await dashboard.expect_toast("alpha")
    assert not (await alpha.call("queue.show", queue="guarded"))["is_paused"]
