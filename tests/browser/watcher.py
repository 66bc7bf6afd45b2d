"""A page of the browser, and whatever goes wrong in it."""

import re
from typing import Any

from playwright.async_api import ConsoleMessage, Locator, Page, Request, Response, expect

from tests.browser.stage import TOKEN

WAIT_MS = 60_000
# A stream of changes is closed by the page that opened it; a page that is loaded again gives up
# the icon that its tab was about to get.
_ENDED = "net::ERR_ABORTED"


class Dashboard:
    """The dashboard of a node in a page; `problems` tells all that should not have happened."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        self.expected: tuple[str, ...] = ()
        """Beginnings of problems that a test wants to see."""
        self._has_left = False
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self._note(f"error {error.message} {error.stack}"))
        page.on("requestfailed", self._on_failed)
        page.on("response", self._on_response)

    def _note(self, problem: str) -> None:
        if not problem.startswith(self.expected or ("\0",)):
            self.problems.append(problem)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._note(f"console {message.text}")

    def _on_failed(self, request: Request) -> None:
        is_given_up = (
            self._has_left or "/watch?" in request.url or request.url.endswith("/icon.svg")
        )
        if not (is_given_up and request.failure == _ENDED):
            self._note(f"failed {request.failure} {request.url}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self._note(f"{response.status} {response.url}")

    async def enter(self, route: str = "/overview", token: str = TOKEN) -> None:
        """Come in by an address that carries the token."""
        await self.page.goto(f"{self.url}/#token={token}&route={route}")
        await expect(self.page.locator(".connection.live")).to_be_visible(timeout=WAIT_MS)

    async def leave(self) -> None:
        """Look at nothing any more, before the node goes away."""
        self._has_left = True
        await self.page.goto("about:blank")

    async def go(self, route: str) -> None:
        """Go to a page as by a link, and wait until it is drawn."""
        await self.page.evaluate("to => { location.hash = to }", f"#{route}")
        name = re.split(r"[/?]", route.lstrip("/"))[0]
        await expect(self.page.locator(f"[data-page={name}]")).to_be_visible(timeout=WAIT_MS)
        await expect(self.page.locator(".loading")).to_have_count(0, timeout=WAIT_MS)

    def button(self, operation: str, within: Locator | None = None) -> Locator:
        """The control of an operation."""
        return (within or self.page.locator("body")).locator(f"[data-operation='{operation}']")

    async def press(self, operation: str, within: Locator | None = None, nth: int = 0) -> None:
        """Press the button of an operation that changes something.

        test_scripts.py looks for these: no such button goes without a test that presses it.
        """
        await self.button(operation, within).nth(nth).click()

    async def command(self, operation: str, within: Locator | None = None) -> str:
        """What the menu beside the button of an operation copies for a terminal."""
        await self.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        beside = self.button(operation, within).first.locator("xpath=..")
        await beside.locator("button.icon").click()
        await self.page.get_by_role("menuitem", name="Copy as CLI").click()
        await self.expect_toast(f"postroad {operation.replace('.', ' ')}")
        return str(await self.evaluate("navigator.clipboard.readText()"))

    async def expect_refusal(self, operation: str, reason: str) -> None:
        """Wait until a button cannot be pressed and says why, also to those who press it."""
        button = self.button(operation).first
        await expect(button).to_have_attribute("title", reason, timeout=WAIT_MS)
        await expect(button).to_be_disabled()
        await button.click(force=True)
        await self.expect_toast(reason)

    def row(self, text: str) -> Locator:
        """A row of a table that says something."""
        return self.page.locator("tbody tr", has_text=text)

    def field(self, label: str) -> Locator:
        """A field of the dialog."""
        fields = self.page.locator("dialog").locator(".field", has_text=label)
        return fields.locator("input, select, textarea")

    async def confirm(self, text: str) -> None:
        """Press the button of the dialog, which says this."""
        button = self.page.locator("dialog .confirm")
        await expect(button).to_have_text(text, timeout=WAIT_MS)
        await button.click()

    async def expect_toast(self, text: str) -> None:
        """Wait for word of what came of it."""
        toast = self.page.locator(".toast", has_text=text).first
        await expect(toast).to_be_visible(timeout=WAIT_MS)

    async def expect_text(self, selector: str, text: str | re.Pattern[str]) -> None:
        """Wait until something says this."""
        found = self.page.locator(selector).first
        await expect(found).to_contain_text(text, timeout=WAIT_MS)

    async def evaluate(self, code: str) -> Any:
        """What JavaScript in the page makes of this."""
        return await self.page.evaluate(code)
