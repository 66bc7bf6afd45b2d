"""What operators do, done by hand in the browser, and seen to have worked."""

import re

import pytest
from playwright.async_api import expect

from tests.browser.stage import RunningNode
from tests.browser.watcher import WAIT_MS, Dashboard

pytestmark = pytest.mark.asyncio(loop_scope="session")


def order(item: str) -> dict[str, object]:
    return {"item": item, "count": 2}


# Services.


async def test_a_call_from_a_form(dashboard: Dashboard) -> None:
    await dashboard.enter("/services/greeter.hello")
    page = dashboard.page
    await page.get_by_label("name *").fill("Ada")
    await page.get_by_label("times").fill("many")
    await dashboard.press("service.call")
    await dashboard.expect_text("[role=alert]", "This must be a number")
    await page.get_by_label("times").fill("2")
    await page.get_by_label("tone").select_option("loud")
    await dashboard.press("service.call")
    await dashboard.expect_text("pre.code", "HELLO ADA! HELLO ADA!")
    await page.get_by_text("Edit as JSON").click()
    await page.get_by_label("Parameters (JSON)").fill('{"name": "Bob"}')
    await dashboard.press("service.call")
    await dashboard.expect_text("pre.code", "Hello Bob!")


async def test_a_call_that_fails_says_why(dashboard: Dashboard) -> None:
    dashboard.expected = ("500 ", "4", "5", "console Failed to load resource")
    await dashboard.enter("/services/greeter.broken")
    await dashboard.press("service.call")
    await dashboard.expect_text(".notice.failing", "this greeting never works")


async def test_an_event_is_emitted(dashboard: Dashboard) -> None:
    await dashboard.enter("/services")
    await dashboard.press("service.emit", dashboard.row("shop.opened"))
    await dashboard.confirm("Emit")
    await dashboard.expect_toast("Emit shop.opened: done")


# Queues.


async def test_messages_are_posted_looked_at_paused_moved_and_purged(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    await alpha.call("queue.post", queue="elsewhere", body="here already")
    await dashboard.enter("/queues")
    await dashboard.press("queue.post")
    await dashboard.field("Queue").fill("parcels")
    await dashboard.field("Body").fill('{"to": "Lübeck"}')
    await dashboard.field("Headers").fill('{"weight": "3"}')
    await dashboard.confirm("Post")
    await dashboard.row("parcels").locator("a").first.click()
    await expect(dashboard.row("Lübeck")).to_be_visible(timeout=WAIT_MS)
    await dashboard.press("queue.pause")
    await dashboard.expect_toast("parcels is paused")
    await dashboard.press("queue.resume")
    await dashboard.expect_toast("parcels is no consumer")
    await dashboard.press("queue.move")
    await dashboard.field("To queue").fill("elsewhere")
    await dashboard.confirm("Move 1 message")
    await dashboard.expect_toast("1 message moved")
    await dashboard.expect_text("main", "Nothing waits here")
    await dashboard.go("/queues/elsewhere")
    await dashboard.press("queue.purge")
    await dashboard.expect_text("dialog", "2 messages in elsewhere now")
    await dashboard.page.locator("dialog .cancel").click()
    assert (await alpha.call("queue.show", queue="elsewhere"))["depth"] == 2
    await dashboard.press("queue.purge")
    await dashboard.confirm("Purge 2 messages")
    await dashboard.expect_toast("2 messages thrown away")
    assert (await alpha.call("queue.show", queue="elsewhere"))["depth"] == 0


async def test_message_of_a_typed_queue_is_written_in_a_form(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    await alpha.call("queue.post", queue="labels", body={"item": "rope", "count": 1})
    await dashboard.enter("/queues/labels")
    await dashboard.expect_text("main", "Order")
    await dashboard.press("queue.post")
    await dashboard.field("item").fill("sail")
    await dashboard.field("count").fill("2")
    await dashboard.confirm("Post")
    await expect(dashboard.row("sail")).to_be_visible(timeout=WAIT_MS)
    _, message = await alpha.call("queue.peek", queue="labels")
    assert message["body"] == '{"item":"sail","count":2}'


async def test_an_action_is_copied_without_the_token(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    await dashboard.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await dashboard.enter("/queues/receipts")
    menu = dashboard.page.get_by_label("Copy “Pause” as a command")
    copied = "navigator.clipboard.readText()"
    await menu.click()
    await dashboard.page.get_by_role("menuitem", name="Copy as CLI").click()
    await dashboard.expect_toast("Copied")
    assert await dashboard.evaluate(copied) == "postroad queue pause receipts"
    await menu.click()
    await dashboard.page.keyboard.press("ArrowDown")
    await dashboard.page.keyboard.press("Enter")
    await dashboard.expect_toast("curl")
    assert await dashboard.evaluate(copied) == (
        "curl -H \"Authorization: Bearer $POSTROAD_TOKEN\" -H 'Content-Type: application/json'"
        f' -d \'{{"queue":"receipts"}}\' {alpha.url}/api/v1/queue/pause'
    )
    await dashboard.press("queue.move")
    await dashboard.field("To queue").fill("other")
    await dashboard.page.locator("dialog").get_by_label("Copy as command").click()
    await dashboard.page.get_by_role("menuitem", name="Copy as CLI").click()
    await dashboard.expect_toast("queue move")
    assert await dashboard.evaluate(copied) == "postroad queue move receipts other"


async def test_a_table_is_downloaded(dashboard: Dashboard) -> None:
    await dashboard.enter("/cells")
    await dashboard.page.get_by_label("Copy or download cells").click()
    async with dashboard.page.expect_download() as started:
        await dashboard.page.get_by_role("menuitem", name="Download CSV").click()
    download = await started.value
    assert download.suggested_filename == "postroad-cells-ps.csv"
    lines = (await download.path()).read_text().splitlines()
    assert lines[0] == "Cell,State,Waiting,Oldest,Handled,Kind,Takes,Description"
    assert any(line.startswith("relay,idle,") for line in lines)


async def test_large_numbers_keep_their_digits(dashboard: Dashboard, alpha: RunningNode) -> None:
    number = 2**60 + 1
    await dashboard.enter("/queues")
    await dashboard.press("queue.post")
    await dashboard.field("Queue").fill("large")
    await dashboard.field("Body").fill(f'{{"number": {number}}}')
    await dashboard.confirm("Post")
    await dashboard.expect_toast("done")
    (letter,) = await alpha.call("queue.peek", queue="large")
    assert letter["body"] == f'{{"number":{number}}}'
    await dashboard.go("/queues/large")
    await dashboard.row("number").locator("summary").first.click()
    await expect(dashboard.row("number").locator("pre").first).to_contain_text(str(number))


# Dead letters.


async def test_dead_letters_are_retried_and_handled(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    before = (await alpha.call("dlq.count"))["count"]
    for item in ("rope", "sail", "mast"):
        await alpha.call("queue.post", queue="orders", body=order(item))
    await alpha.dead_of(before + 3)
    await dashboard.enter("/dead?queue=orders")
    await dashboard.row("no rope today").get_by_text("failed").first.wait_for()
    await dashboard.row('"rope"').get_by_role("checkbox").check()
    # Still nothing on the shelf: it dies again, and says that it was retried.
    await expect(dashboard.button("dlq.retry")).to_have_text("Retry 1 selected letter")
    await dashboard.press("dlq.retry")
    await dashboard.expect_toast("1 letter put back")
    await expect(dashboard.row('"rope"')).to_contain_text("retried once", timeout=WAIT_MS)
    await alpha.call("service.call", action="shop.restock", params={"item": "rope"})
    await dashboard.row('"rope"').get_by_role("checkbox").check()
    await dashboard.page.get_by_role("button", name="Retry 1 selected letter", exact=True).click()
    await expect(dashboard.row('"rope"')).to_have_count(0, timeout=WAIT_MS)
    assert (await alpha.call("dlq.count"))["count"] == before + 2
    await dashboard.row('"sail"').locator("td a").first.click()
    await dashboard.expect_text("main", "no sail today")
    await dashboard.press("dlq.drop")
    await dashboard.confirm("Drop 1 letter")
    await expect(dashboard.row('"mast"')).to_be_visible(timeout=WAIT_MS)
    await expect(dashboard.row('"sail"')).to_have_count(0, timeout=WAIT_MS)


# Flows.


async def test_a_flow_is_begun_from_a_form_and_forked_from_a_step(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    await dashboard.enter("/flows?tab=definitions")
    await dashboard.press("flow.begin", dashboard.row("Reserve, charge"))
    await dashboard.field("item").fill("honey")
    await dashboard.field("count").fill("3")
    await dashboard.confirm("Begin")
    await dashboard.expect_text(".timeline", "label for honey")
    await dashboard.expect_text(".timeline", "ann paid 750 cents")
    first = dashboard.page.url
    await dashboard.press("flow.fork", nth=2)
    await dashboard.expect_toast("done")
    await expect(dashboard.page).not_to_have_url(first)
    await dashboard.expect_text(".timeline", "label for honey")
    forked = dashboard.page.url.rpartition("/")[2]
    await alpha.flow_in(forked, "done")


async def test_a_flow_is_paused_resumed_asked_and_signalled(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    id = await alpha.begin("approve", order=order("tent"))
    await dashboard.enter(f"/flows/{id}")
    await dashboard.expect_text(".facts", "waiting for somebody")
    await dashboard.page.get_by_text("Ask its code").click()
    await dashboard.page.get_by_label("Query", exact=True).fill("order")
    await dashboard.button("flow.query").click()
    await dashboard.expect_text("pre.code", "tent")
    await dashboard.press("flow.pause")
    await dashboard.expect_text(".facts", "paused")
    await dashboard.press("flow.resume")
    await dashboard.expect_text(".facts", "running")
    await dashboard.press("flow.signal")
    await dashboard.field("Signal").fill("approved")
    await dashboard.field("Value").fill("yes, of course")
    await dashboard.confirm("Send")
    await dashboard.expect_text(".facts", "done")
    await dashboard.expect_text(".timeline", "charge")


async def test_a_parked_flow_is_found_retried_and_killed(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    id = await alpha.begin("deliver", item="anchor")
    await alpha.flow_in(id, "parked")
    await dashboard.enter("/flows")
    await dashboard.page.get_by_label("Status").select_option("parked")
    await dashboard.row("anchor has a flat tyre").locator("a").click()
    await dashboard.expect_text(".panel .wrong", "anchor has a flat tyre")
    await dashboard.press("flow.retry")
    await dashboard.expect_toast("Retry: done")
    await dashboard.expect_text(".facts", "parked")
    await dashboard.press("flow.kill")
    await dashboard.field("Reason").fill("sunk")
    await dashboard.confirm("Kill 1 flow")
    await dashboard.expect_text(".facts", "killed")
    await expect(dashboard.button("flow.kill")).to_be_disabled()


async def test_a_flow_is_cancelled_where_it_waits(dashboard: Dashboard, alpha: RunningNode) -> None:
    id = await alpha.begin("approve", order=order("stove"))
    await dashboard.enter(f"/flows/{id}")
    await dashboard.expect_text(".facts", "waiting for somebody")
    await dashboard.press("flow.cancel")
    await dashboard.field("Reason").fill("too heavy")
    await dashboard.confirm("Cancel 1 flow")
    await dashboard.expect_text(".facts", "failed")
    await dashboard.expect_text(".panel .wrong", "FlowCancelledError: too heavy")
    await expect(dashboard.button("flow.cancel")).to_be_disabled()


async def test_a_schedule_is_paused_resumed_and_run(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    await dashboard.enter("/flows?tab=schedules")
    row = dashboard.row("nightly")
    await dashboard.press("flow.pause-schedule", row)
    await expect(row).to_contain_text("paused", timeout=WAIT_MS)
    await dashboard.press("flow.resume-schedule", row)
    await expect(row).not_to_contain_text("paused", timeout=WAIT_MS)
    await dashboard.press("flow.run-schedule", row)
    await dashboard.expect_toast("Run now: done")


# Bridges.


async def test_a_bridge_is_paused_looked_into_and_resumed(
    dashboard: Dashboard, alpha: RunningNode, beta: RunningNode
) -> None:
    await alpha.call("queue.post", queue="letters", peer="beta", body="the first")
    await dashboard.enter("/bridges")
    await dashboard.row("beta").locator("a").click()
    await dashboard.press("bridge.pause")
    await dashboard.expect_text(".facts", "paused")
    await alpha.call("queue.post", queue="letters", peer="beta", body="the second")
    await expect(dashboard.row("the second")).to_be_visible(timeout=WAIT_MS)
    await dashboard.press("bridge.resume")
    await dashboard.expect_text("main", "beta has everything that was posted to it")
    assert (await beta.call("queue.show", queue="letters"))["depth"] == 2


# Cells.


async def test_cells_are_pinged_and_commanded(dashboard: Dashboard) -> None:
    await dashboard.enter("/cells/relay")
    await dashboard.button("cells.ping").click()
    await dashboard.expect_text("ul.plain", re.compile(r"3: .* ms"))
    await dashboard.button("cells.traceroute").click()
    await dashboard.expect_text("ol.plain", "alpha")
    await dashboard.press("cells.run")
    await dashboard.expect_text("pre.code", "help")


# Pipelines.


async def test_a_job_is_started_watched_and_its_dead_segments_retried(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    await dashboard.enter("/pipelines")
    await dashboard.press("job.submit")
    await expect(dashboard.row("sums")).to_contain_text("running", timeout=4 * WAIT_MS)
    await dashboard.row("sums").locator("a").click()
    await expect(dashboard.page.locator(".graph .box")).to_have_count(3, timeout=WAIT_MS)
    await dashboard.expect_text("figure.chart", "Processing")
    await dashboard.expect_text("section[aria-label=Tasks]", "add")
    await dashboard.expect_text("section[aria-label='Holding pen']", "No segment waits.")
    await expect(dashboard.button("job.drop", dashboard.row("add"))).to_have_count(
        2, timeout=WAIT_MS
    )
    await dashboard.press("job.drop", dashboard.row("add"))
    await dashboard.confirm("Drop 1 segment")
    await dashboard.expect_toast("1 segment dropped")
    await dashboard.press("job.retry")
    await dashboard.expect_toast("1 segment put back")
    await dashboard.press("job.stop")
    await dashboard.confirm("Stop sums")
    await dashboard.expect_text(".facts", "stopped")
