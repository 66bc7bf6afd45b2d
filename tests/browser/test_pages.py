"""Every page, drawn from what a real node says."""

import os
import re
import time
from pathlib import Path

import msgspec
import pytest
from playwright.async_api import expect

from postroad.pipeline import JobProgress, TaskProgress
from tests.browser.shop import MARKUP
from tests.browser.stage import RunningNode, running_node, write_job
from tests.browser.watcher import WAIT_MS, Dashboard

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGES = {
    "/overview": "Handled",
    "/map": "greeter",
    "/nodes": "alpha",
    "/nodes/alpha": "Ready",
    "/nodes/alpha?tab=config": "node.cluster",
    "/nodes/alpha?tab=logs": "postroad.node",
    "/services": "greeter.hello",
    "/services/greeter.hello": "Greet somebody",
    "/queues": "receipts",
    "/queues/receipts": "consumed",
    "/dead": "Dead letters",
    "/bridges": "Bridges",
    "/flows": "Begun",
    "/flows?tab=definitions": "approve",
    "/flows?tab=schedules": "nightly",
    "/pipelines": "sums",
    "/pipelines/sums": "Dead segments",
    "/cells": "relay",
    "/cells/relay": "parrots",
    "/cells?tab=domains": "this one",
    "/cells?tab=routes": "parrots",
    "/cells?tab=tools": "Traceroute",
    "/traces": "greeter.hello",
    "/search?text=greeter": "greeter.hello",
}


async def test_each_page_shows_what_it_is_about(dashboard: Dashboard, alpha: RunningNode) -> None:
    await alpha.begin("buy", item="tea")
    await dashboard.enter()
    for route, text in PAGES.items():
        await dashboard.go(route)
        await dashboard.expect_text("main", text)


async def test_cluster_and_node_are_in_header_and_title(dashboard: Dashboard) -> None:
    await dashboard.enter("/queues")
    await dashboard.expect_text(".cluster", "market")
    await expect(dashboard.page.get_by_label("Node")).to_have_value("alpha")
    await expect(dashboard.page).to_have_title(re.compile("market/alpha - Queues - Postroad"))


async def test_the_token_leaves_the_address_and_a_reload_shows_the_same(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    id = await alpha.begin("buy", item="honey")
    await dashboard.enter(f"/flows/{id}")
    assert dashboard.page.url == f"{alpha.url}/#/flows/{id}"
    await dashboard.page.reload()
    await dashboard.expect_text("main", "print_label")
    assert dashboard.page.url == f"{alpha.url}/#/flows/{id}"


async def test_an_address_that_leads_nowhere(dashboard: Dashboard) -> None:
    await dashboard.enter("/nowhere")
    await dashboard.expect_text("main", "There is no page “nowhere”")
    await dashboard.page.get_by_text("To the overview").click()
    await dashboard.expect_text("h1", "Overview")


async def test_what_does_not_exist_is_told_with_what_is_near(dashboard: Dashboard) -> None:
    await dashboard.enter("/queues/receipt")
    await dashboard.expect_text(".notice", "did you mean 'receipts'")


async def test_dark_and_light(dashboard: Dashboard) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    await dashboard.page.emulate_media(color_scheme="light")
    await dashboard.enter()
    light = await dashboard.evaluate(ground)
    await dashboard.page.emulate_media(color_scheme="dark")
    dark = await dashboard.evaluate(ground)
    assert light != dark
    switch = dashboard.page.locator("button.theme")
    await switch.click()
    assert await dashboard.evaluate(ground) == dark
    await switch.click()
    assert await dashboard.evaluate(ground) == light
    await dashboard.page.reload()
    await dashboard.expect_text("h1", "Overview")
    assert await dashboard.evaluate(ground) == light


async def test_tables_are_sorted_and_filtered_by_keyboard(dashboard: Dashboard) -> None:
    await dashboard.enter("/cells")
    head = dashboard.page.locator("th", has_text="Cell")
    names = dashboard.page.locator("tbody td:first-child")
    await head.locator("button").focus()
    await dashboard.page.keyboard.press("Enter")
    await expect(head).to_have_attribute("aria-sort", "ascending")
    upwards = await names.all_inner_texts()
    await dashboard.page.keyboard.press("Enter")
    await expect(head).to_have_attribute("aria-sort", "descending")
    assert await names.all_inner_texts() == upwards[::-1]
    await dashboard.page.get_by_label("Filter cells").fill("parrots")
    await expect(names).to_have_text(["relay"])


async def test_the_map_is_reached_by_keyboard_and_tells_of_what_is_chosen(
    dashboard: Dashboard,
) -> None:
    await dashboard.enter("/map")
    box = dashboard.page.get_by_role("button", name="service greeter, ok")
    await box.focus()
    await dashboard.page.keyboard.press("Enter")
    await expect(box).to_have_attribute("aria-pressed", "true")
    await dashboard.expect_text(".map .panel", "greeter")
    await dashboard.page.get_by_text("Open its page").click()
    await dashboard.expect_text("main", "greeter.hello")


async def test_the_content_is_one_key_away(dashboard: Dashboard) -> None:
    await dashboard.enter("/queues")
    await dashboard.page.keyboard.press("Tab")
    await expect(dashboard.page.get_by_text("Skip to the content")).to_be_focused()
    await dashboard.page.keyboard.press("Enter")
    await expect(dashboard.page.locator("main")).to_be_focused()
    await dashboard.expect_text("h1", "Queues")


async def test_search_finds_any_id(dashboard: Dashboard, alpha: RunningNode) -> None:
    id = await alpha.begin("buy", item="paper")
    posted = await alpha.call("queue.post", queue="lost", body="found")
    await dashboard.enter()
    await dashboard.page.keyboard.press("/")
    await dashboard.page.keyboard.type(id)
    await dashboard.page.keyboard.press("Enter")
    await dashboard.row(id).locator("a").click()
    await dashboard.expect_text("main", "print_label")
    await dashboard.go(f"/search?text={posted['id']}")
    await dashboard.row(posted["id"]).locator("a").click()
    await dashboard.expect_text("main", "found")


async def test_names_bodies_and_headers_stay_text(dashboard: Dashboard, alpha: RunningNode) -> None:
    await alpha.call("queue.post", queue="marked", body=MARKUP, key=MARKUP, headers={"h": MARKUP})
    id = await alpha.begin("buy", item="lamp oil")
    await alpha.flow_in(id, "done")
    as_client = MARKUP.replace(" ", "-")
    begun = await alpha.call(
        "flow.begin", flow="buy", arguments={"item": MARKUP}, client_id=as_client
    )
    await alpha.flow_in(begun["id"], "done")
    await dashboard.enter("/queues/marked")
    await expect(dashboard.row(MARKUP)).to_have_count(1, timeout=WAIT_MS)
    for route in ("/services", f"/flows/{id}", f"/flows/{begun['id']}", "/flows"):
        await dashboard.go(route)
        await dashboard.expect_text("main", "onerror=")
        assert await dashboard.page.locator("main img").count() == 0
    await dashboard.go("/search?text=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    await dashboard.expect_text("main", "Nothing is called “<img src=x")
    assert await dashboard.page.locator("main img").count() == 0
    assert "broken in" not in await dashboard.page.title()


async def test_a_trace_shows_where_time_went(dashboard: Dashboard, alpha: RunningNode) -> None:
    await alpha.call("service.call", action="shop.order", params={"order": order("trace")})
    await dashboard.enter("/traces")
    await dashboard.page.get_by_text("Hold the list").click()
    await dashboard.row("post receipts").first.locator("a").click()
    await dashboard.expect_text(".waterfall", "receipts")
    await dashboard.page.locator(".waterfall button").first.click()
    await dashboard.expect_text("pre.code", "trace_id")


def order(item: str) -> dict[str, object]:
    return {"item": item, "count": 1}


async def test_a_message_tells_what_keeps_it(dashboard: Dashboard, alpha: RunningNode) -> None:
    for body in ("the first", "the second"):
        await alpha.call("queue.post", queue="stubborn", body=body, key="same")
    await dashboard.enter("/queues/stubborn")
    row = dashboard.row("the first")
    await expect(row).to_contain_text("failed once", timeout=WAIT_MS)
    await expect(row).to_contain_text("RuntimeError: not today: the first")
    await expect(row).to_contain_text(re.compile(r"next in (1 h|[3-6]\d min)"))
    await expect(dashboard.row("the second")).to_contain_text("waits for an earlier one of its key")
    await alpha.call("queue.purge", queue="stubborn")


async def test_a_flow_tells_what_it_waits_for_what_came_of_it_and_whence_it_is(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    id = await alpha.begin("approve", order=order("boat"))
    await dashboard.enter(f"/flows/{id}")
    await dashboard.expect_text(".facts", "signal approved")
    await dashboard.expect_text(".facts", "item=boat, count=1")
    await dashboard.expect_text("section[aria-label=Arguments]", "boat")
    await alpha.call("flow.signal", id=id, name="approved", value="aye")
    await dashboard.expect_text("section[aria-label=Result]", "aye")
    forked = await alpha.call("flow.fork", id=id, step=2)
    await dashboard.go(f"/flows/{forked['id']}")
    await dashboard.expect_text(".facts", "at step #2")
    await dashboard.page.locator(".facts a", has_text=id).click()
    await dashboard.expect_text("h1", "Flow")
    assert dashboard.page.url.endswith(id)


async def test_a_node_without_a_program_says_how_to_get_one_and_a_broken_job_says_why(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    (tmp_path / "broken.toml").write_text('name = "broken"\nworkflow = "none"\n')
    settings = {"node.cluster": "idle", "node.app": "", "pipeline.jobs": "broken.toml"}
    async with running_node("idle", tmp_path, settings) as idle:
        dashboard.url = idle.url
        await dashboard.enter()
        await dashboard.expect_text(".empty", "This node runs no program yet.")
        await dashboard.go("/pipelines")
        await expect(dashboard.row("broken")).to_contain_text("workflow", timeout=WAIT_MS)
        await dashboard.row("broken").locator("a").click()
        await dashboard.expect_text(".notice.failing", "workflow")
        await dashboard.leave()


def progress_of_spark(url: str) -> bytes:
    """What the process of a job on Spark says of it, now and for an hour."""
    numbers = (os.getpid(), time.time() + 3600, 9, 8, 0, 0, 1, 0, 0, 0, 0, 0.0, 0.0, 8.0, 0.1)
    tasks = {"add": TaskProgress(processed=8, failed=1, per_s=1200.0, latency_s=0.0005)}
    return msgspec.json.encode(JobProgress("sums", *numbers, tasks=tasks, spark_ui_url=url))


async def test_a_job_on_spark_has_rates_of_its_tasks_and_a_link_to_the_ui_of_spark(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    write_job(tmp_path)
    file = tmp_path / "sums.progress.json"
    file.write_bytes(progress_of_spark("http://127.0.0.1:4040"))
    settings = {"pipeline.jobs": '[{"path": "sums.toml", "start": false}]', "node.app": ""}
    async with running_node("idle", tmp_path, settings | {"node.cluster": "idle"}) as idle:
        dashboard.url = idle.url
        await dashboard.enter("/pipelines/sums")
        link = dashboard.page.locator(".facts a", has_text="http://127.0.0.1:4040")
        await expect(link).to_have_attribute("href", "http://127.0.0.1:4040", timeout=WAIT_MS)
        await dashboard.expect_text("section[aria-label=Tasks]", "1,200")
        # Whoever can write there must not have a program run here.
        file.write_bytes(progress_of_spark("javascript:alert(1)"))
        await expect(link).to_have_count(0, timeout=4 * WAIT_MS)
        await expect(dashboard.page.locator("a[href^=javascript]")).to_have_count(0)
        await dashboard.leave()
