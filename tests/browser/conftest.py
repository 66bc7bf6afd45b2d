"""One browser and two nodes for all tests that need them.

Environment:
    POSTROAD_SCREENSHOTS  "1" makes the pictures in docs/images anew.
"""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect

from tests.browser.stage import RunningNode, running_node, write_job
from tests.browser.watcher import WAIT_MS, Dashboard

# It makes the pictures of the documentation, and takes its time.
collect_ignore = [] if os.environ.get("POSTROAD_SCREENSHOTS") == "1" else ["test_screenshots.py"]

# A test that expects something without saying how soon is as patient as all others.
expect.set_options(timeout=WAIT_MS)

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """A real browser, without a window."""
    found = next((path for it in BROWSERS if (path := shutil.which(it))), None)
    if found is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def alpha(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningNode]:
    """A node with something of everything."""
    directory: Path = tmp_path_factory.mktemp("alpha")
    write_job(directory)
    jobs = '[{"path": "sums.toml", "start": false}]'
    settings = {"pipeline.jobs": jobs, "admin.remote": "read"}
    async with running_node("alpha", directory, settings) as node:
        yield node


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def beta(
    alpha: RunningNode, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningNode]:
    """Another one of the same cluster, that lets others change things."""
    address = (await alpha.call("node.show"))["address"]
    settings = {"cluster.seeds": address, "admin.remote": "change"}
    async with running_node("beta", tmp_path_factory.mktemp("beta"), settings) as node:
        yield node


@pytest_asyncio.fixture(loop_scope="session")
async def dashboard(browser: Browser, alpha: RunningNode) -> AsyncIterator[Dashboard]:
    """A fresh page; nothing may go wrong in it unseen."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(WAIT_MS)
    opened = Dashboard(await context.new_page(), alpha.url)
    yield opened
    await context.close()
    assert opened.problems == []
