"""The map of small and of large clusters, made of nodes that are really there."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from postroad.node import App, Node, NodeConfig
from postroad.node.settings import AdminSettings, ClusterSettings, Layer, NodeSettings
from tests.browser.stage import RunningNode, running_node
from tests.browser.watcher import WAIT_MS, Dashboard
from tests.support.tiers import sample

pytestmark = pytest.mark.asyncio(loop_scope="session")

WIDTHS = (1440, 1024, 390)
LETTER_PX_MIN = 9.5

# Where each box is, and whether its texts are within it and beside one another.
BOXES = """
() => [...document.querySelectorAll(".graph .box")].map((box) => {
  const [frame, label, kind] = ["rect", ".label", ".kind"]
    .map((it) => box.querySelector(it).getBoundingClientRect());
  return {
    name: box.getAttribute("aria-label"),
    left: frame.left, right: frame.right, top: frame.top, bottom: frame.bottom,
    fits: label.left >= frame.left && label.right <= kind.left + 1 && kind.right <= frame.right,
    letter: label.height / 1.2,
  };
})
"""


@asynccontextmanager
async def members(contact: RunningNode, count: int, cluster: str) -> AsyncIterator[None]:
    """So many nodes besides one, which are members and nothing else."""
    address = (await contact.call("node.show"))["address"]
    async with AsyncExitStack() as stack:
        for number in range(count):
            config = NodeConfig(
                node=NodeSettings(
                    name=f"eu-west-{number}.market", cluster=cluster, layers=(Layer.CLUSTER,)
                ),
                cluster=ClusterSettings(seeds=(address,)),
                admin=AdminSettings(enabled=False),
            )
            await stack.enter_async_context(Node(config, App()))
        yield


@pytest.mark.parametrize("count", sample([30, 5, 1], 1))
async def test_every_box_can_be_read(dashboard: Dashboard, tmp_path: Path, count: int) -> None:
    cluster = f"of-{count}"
    async with (
        running_node("first", tmp_path, {"node.cluster": cluster}) as first,
        members(first, count - 1, cluster),
    ):
        dashboard.url = first.url
        await dashboard.enter("/map")
        nodes = dashboard.page.locator(".graph .box.node")
        await expect(nodes).to_have_count(count, timeout=WAIT_MS)
        for width in WIDTHS:
            await dashboard.page.set_viewport_size({"width": width, "height": 800})
            boxes: list[dict[str, Any]] = await dashboard.evaluate(BOXES)
            assert [it["name"] for it in boxes if not it["fits"]] == []
            assert min(it["letter"] for it in boxes) >= LETTER_PX_MIN
            assert overlapping(boxes) == []
        await nodes.first.click()
        panel = dashboard.page.locator(".map .panel")
        await expect(panel).to_be_in_viewport()
        await expect(panel.locator(".joined button")).not_to_have_count(0)
        await dashboard.leave()


def overlapping(boxes: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [
        (one["name"], other["name"])
        for index, one in enumerate(boxes)
        for other in boxes[:index]
        if one["left"] < other["right"]
        and other["left"] < one["right"]
        and one["top"] < other["bottom"]
        and other["top"] < one["bottom"]
    ]
