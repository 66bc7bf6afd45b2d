"""What pages look like and feel like: legible, in reach, by keyboard too, and never jumping."""

import re
from typing import Any

import pytest
from playwright.async_api import expect

from tests.browser.stage import RunningNode
from tests.browser.test_pages import PAGES
from tests.browser.watcher import WAIT_MS, Dashboard
from tests.support.tiers import sample

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Of desks and of telephones.
WIDTHS = (1440, 1024, 390, 360)
# What can be used must have a name: `- button "Pause"`.
NAMELESS = re.compile(
    r"^\s*- (?:button|link|textbox|searchbox|combobox|checkbox|menuitem)(?: \[[^\]]*\])*:?$",
    re.MULTILINE,
)
CONTRAST_MIN = 4.5

# Every text that is seen, with the colour it has and the one behind it, as WCAG 2 measures them.
WEAK_TEXTS = """
least => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const paint = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) {
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
    }
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([red, green, blue]) =>
    [red, green, blue]
      .map((it) => it / 255)
      .map((it) => (it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4))
      .reduce((sum, it, index) => sum + it * [0.2126, 0.7152, 0.0722][index], 0);
  const weak = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    if (!text || element.closest("svg, script, noscript, option") || !element.checkVisibility({
      opacityProperty: true, visibilityProperty: true })) continue;
    const grounds = [];
    for (let it = element; it; it = it.parentElement) {
      grounds.unshift(getComputedStyle(it).backgroundColor);
    }
    const ground = luminance(paint(grounds));
    const ink = luminance(paint([...grounds, getComputedStyle(element).color]));
    const ratio = (Math.max(ground, ink) + 0.05) / (Math.min(ground, ink) + 0.05);
    if (ratio < least) weak.add(`${element.tagName}.${element.className} ${text.slice(0, 30)}`);
  }
  return [...weak];
}
"""

# Buttons in a table that the window cuts off.
OUT_OF_REACH = """
() => [...document.querySelectorAll("td.actions button, .heading button, .buttons button")]
  .filter((it) => it.getBoundingClientRect().right > innerWidth + 1)
  .map((it) => it.textContent || it.getAttribute("aria-label"))
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_all_texts_can_be_read(dashboard: Dashboard, alpha: RunningNode, scheme: Any) -> None:
    await alpha.begin("deliver", item="contrast")
    await dashboard.page.emulate_media(color_scheme=scheme)
    await dashboard.enter()
    for route, text in PAGES.items():
        await dashboard.go(route)
        await dashboard.expect_text("main", text)
        assert await dashboard.page.evaluate(WEAK_TEXTS, CONTRAST_MIN) == [], route


async def test_everything_that_can_be_used_has_a_name(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    await alpha.begin("deliver", item="name tag")
    await dashboard.enter()
    for route, text in PAGES.items():
        await dashboard.go(route)
        await dashboard.expect_text("main", text)
        snapshot = await dashboard.page.locator("body").aria_snapshot()
        assert NAMELESS.findall(snapshot) == [], route
        assert len(re.findall(r"- '?heading .*\[level=1\]", snapshot)) == 1, route


@pytest.mark.parametrize("width", sample(WIDTHS, 2))
async def test_pages_fit_and_buttons_are_in_reach(
    dashboard: Dashboard, alpha: RunningNode, width: int
) -> None:
    await alpha.begin("deliver", item="ladder")
    await dashboard.page.set_viewport_size({"width": width, "height": 800})
    await dashboard.enter()
    for route, text in PAGES.items():
        await dashboard.go(route)
        await dashboard.expect_text("main", text)
        too_wide = "document.documentElement.scrollWidth - innerWidth"
        assert await dashboard.evaluate(too_wide) <= 0, route
        if width >= 1024:
            assert await dashboard.evaluate(OUT_OF_REACH) == [], route


async def test_nothing_jumps_while_numbers_change(dashboard: Dashboard) -> None:
    await dashboard.enter("/queues")
    handled = dashboard.row("receipts").locator("td").nth(5)
    places = "[...document.querySelectorAll('th, td:first-child, .actions')]"
    places += ".map(it => Math.round(it.getBoundingClientRect().left)).join()"
    await expect(handled).to_be_visible(timeout=WAIT_MS)
    before = await dashboard.evaluate(places)
    for _ in range(5):
        number = await handled.inner_text()
        await expect(handled).not_to_have_text(number, timeout=WAIT_MS)
        assert await dashboard.evaluate(places) == before


async def test_the_focus_stays_with_a_button_that_becomes_another(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    await alpha.call("queue.post", queue="focused", body="one")
    await dashboard.enter("/queues/focused")
    await dashboard.button("queue.pause").focus()
    await dashboard.page.keyboard.press("Enter")
    await expect(dashboard.button("queue.resume")).to_be_focused(timeout=WAIT_MS)
    await dashboard.page.keyboard.press("Enter")
    await expect(dashboard.button("queue.pause")).to_be_focused(timeout=WAIT_MS)


async def test_a_question_keeps_what_is_typed_and_gives_the_focus_back(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    await alpha.call("queue.post", queue="asked", body="one")
    await dashboard.enter("/queues/asked")
    await dashboard.button("queue.post").focus()
    await dashboard.page.keyboard.press("Enter")
    await expect(dashboard.field("Body")).to_be_focused()
    await dashboard.page.keyboard.type("half a body")
    await alpha.call("queue.post", queue="asked", body="two")
    await expect(dashboard.row("two")).to_have_count(1, timeout=WAIT_MS)
    await expect(dashboard.field("Body")).to_have_value("half a body")
    await expect(dashboard.field("Body")).to_be_focused()
    await dashboard.page.keyboard.press("Escape")
    await expect(dashboard.page.locator("dialog")).to_be_hidden()
    await expect(dashboard.button("queue.post")).to_be_focused()
    assert (await alpha.call("queue.show", queue="asked"))["depth"] == 2


async def test_what_is_opened_stays_open_while_more_arrives(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    await alpha.call("queue.post", queue="opened", body={"first": 1})
    await dashboard.enter("/queues/opened")
    row = dashboard.row('"first"')
    await row.locator("summary").first.click()
    await alpha.call("queue.post", queue="opened", body={"second": 2})
    await expect(dashboard.row('"second"')).to_have_count(1, timeout=WAIT_MS)
    await expect(row.locator("pre").first).to_be_visible()


async def test_who_goes_back_finds_the_page_as_they_left_it(
    dashboard: Dashboard, alpha: RunningNode
) -> None:
    for number in range(40):
        await alpha.call("queue.post", queue=f"shelf-{number}", body="x")
    await dashboard.enter("/queues")
    filter = dashboard.page.get_by_label("Filter queues")
    await filter.fill("shelf")
    await dashboard.page.locator("th button", has_text="Queue").click()
    link = dashboard.page.get_by_role("link", name="shelf-39")
    await link.scroll_into_view_if_needed()
    top = await dashboard.evaluate("scrollY")
    assert top > 0
    await link.click()
    await dashboard.expect_text("h1", "shelf-39")
    assert await dashboard.evaluate("scrollY") == 0
    await dashboard.page.go_back()
    await expect(filter).to_have_value("shelf", timeout=WAIT_MS)
    head = dashboard.page.locator("th", has_text="Queue")
    await expect(head).to_have_attribute("aria-sort", "ascending")
    assert await dashboard.evaluate("scrollY") == top
    await dashboard.page.go_forward()
    await dashboard.expect_text("h1", "shelf-39")


async def test_a_row_of_pages_shows_where_one_is(dashboard: Dashboard) -> None:
    await dashboard.page.set_viewport_size({"width": 390, "height": 800})
    await dashboard.enter("/traces")
    here = dashboard.page.locator("nav.pages [aria-current]")
    await expect(here).to_have_text("Traces")
    await expect(here).to_be_in_viewport(ratio=1)
