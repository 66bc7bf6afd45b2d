"""Jobs that name queues, run without a node at hand: by its store, or by the node if that runs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TypeAlias

import msgspec

from postroad.core.errors import ConfigError, StoreLockedError
from postroad.durable import Store, store_from_url
from postroad.net.owned_files import make_private_directory
from postroad.node.settings import NodeConfig
from postroad.pipeline import JobProgress, JobResult, Local, Spark
from postroad.pipeline.run import PROGRESS_S, JobRun

from .client import Client, find_nodes
from .errors import NotFound
from .jobs import JobView
from .pipeline import find_config, has_queues, load_job

_MEMORY = "memory"


def find_running(config: NodeConfig) -> Client | None:
    """The API of a node, if it runs on this machine."""
    cards = [it for it in find_nodes(config.data) if it.name == config.node.name]
    return Client.of(cards[0], config.data, token=config.admin.token) if cards else None


Host: TypeAlias = tuple[Client, NodeConfig]
"""A running node, and its configuration."""


def find_node_of(path: Path, config: Path | None = None) -> Host | None:
    """The running node that has the queues of a job; None if it has none, or the node rests."""
    if not has_queues(load_job(path)):
        return None
    owner = find_config(config)
    client = find_running(owner)
    return None if client is None else (client, owner)


def name_for_node(path: Path) -> str:
    """A file as a node knows it, wherever it was started."""
    return os.path.realpath(path)


def queue_store(config: NodeConfig) -> Store:
    """The store of a node that does not run, not open yet."""
    if config.store == _MEMORY:
        raise ConfigError(
            f"node {config.node.name!r} keeps its queues in memory; start it, and run the job there"
        )
    if config.queues.store is None:
        make_private_directory(config.data)
    return store_from_url(config.store)


async def run_with_queues(
    ways: JobRun, path: Path | None, config: object, checkpoint: str | Path | None
) -> JobResult:
    """Run a job that has queues: in their node if that runs, else with the node's store.

    Args:
        ways: the job, and how it runs.
        path: its file, if it has one.
        config: of the node; see `find_config`.
        checkpoint: for Spark.

    Raises:
        ConfigError: the node runs and cannot run the job, or it is not known which node it is.
    """
    owner = await asyncio.to_thread(find_config, config)
    client = await asyncio.to_thread(find_running, owner)
    if client is not None:
        with client:
            return await _run_in_node(client, ways, path, owner.node.name)
    store = queue_store(owner)
    directory = checkpoint or (owner.data / f"{ways.job.name}.spark").absolute()
    try:
        await store.open(owner.node.name, owner.queues.tuning)
    except StoreLockedError as error:
        raise ConfigError(
            f"job {ways.job.name!r} needs the store of node {owner.node.name!r}, which another "
            f"process uses ({error}); submit the job to that node, or stop it"
        ) from error
    try:
        return await ways.run_in(store, store, directory)
    finally:
        await store.close()


async def _run_in_node(client: Client, ways: JobRun, path: Path | None, node: str) -> JobResult:
    """Have a running node run a job, and wait for its end."""
    if path is None or ways.has_own_connectors:
        raise ConfigError(
            f"node {node!r} runs and keeps the queues of job {ways.job.name!r}: give the node "
            "itself (node=) or the file of the job, or stop the node"
        )
    job = name_for_node(path)
    view = await asyncio.to_thread(submit_to, client, path, ways.on, node, restart=False)
    try:
        while view.state == "running":
            if view.progress is not None and ways.on_progress is not None:
                ways.on_progress(view.progress)
            await asyncio.sleep(PROGRESS_S)
            view = await _call(client, "job.show", {"job": job})
    except asyncio.CancelledError:
        await _call(client, "job.stop", {"job": job})
        raise
    if view.result is None:
        raise ConfigError(
            f"job {ways.job.name!r} did not run to its end in node {node!r}: "
            f"{view.problem or 'it was stopped there'}"
        )
    return view.result


def submit_to(
    client: Client, path: Path, on: Local | Spark, node: str, *, restart: bool = True
) -> JobView:
    """Have a running node run a job.

    Raises:
        ConfigError: it runs there already, or how it is to run is said in its configuration only.
    """
    if isinstance(on, Spark) and on.has_settings:
        raise ConfigError(
            f"node {node!r} runs, and runs job {path} as its configuration says: give master and "
            "conf there, in pipeline.jobs"
        )
    where = "spark" if isinstance(on, Spark) else "local"
    parameters = {"job": name_for_node(path), "on": where, "restart": restart}
    return msgspec.convert(client.call("job.submit", parameters, is_read=False), JobView)


def find_progress_at(host: Host, path: Path) -> JobProgress | None:
    """How a job is doing that a node runs; None if the node does not run it."""
    try:
        answer = host[0].call("job.show", {"job": name_for_node(path)}, is_read=True)
    except NotFound:
        return None
    return msgspec.convert(answer, JobView).progress


async def _call(client: Client, operation: str, parameters: dict[str, object]) -> JobView:
    is_read = operation == "job.show"
    answer = await asyncio.to_thread(client.call, operation, parameters, is_read=is_read)
    return msgspec.convert(answer, JobView)
