"""What is particular about streams of NATS JetStream."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest
import trustme
from nats.js.api import ConsumerConfig

from postroad.core.errors import ConfigError, MissingExtraError
from postroad.pipeline import Task, TaskType
from postroad.pipeline.connectors import JetStreamInput, Position, make_input
from postroad.pipeline.connectors.jetstream import client as jetstream_client
from tests.contract.pipeline_media_harness import (
    SEGMENTS,
    assert_once,
    count_to,
    process_of,
    run_job,
)
from tests.contract.server_input_behaviour import eventually
from tests.contract.test_jetstream_medium import Messages, client_of
from tests.support.servers.nats import NatsServer, nats_server, shared_nats

URL = "nats://127.0.0.1:4222"


async def messages_in(**config: Any) -> Messages:
    messages = Messages(shared_nats())
    await messages.create(**config)
    return messages


# What a stream may do.


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
async def test_messages_that_were_deleted_are_gaps(retention: str) -> None:
    messages = await messages_in(retention=retention)
    await messages.put(count_to(SEGMENTS))
    deleted = [1, 4, 5, 6, 13, SEGMENTS]
    async with client_of(messages.server) as client:
        for sequence in deleted[:-1]:
            await client.delete_msg(messages.name, sequence)
        async with process_of(messages, batch_size=SEGMENTS) as process:
            deliveries = await process.admit()
            await client.delete_msg(messages.name, deleted[-1])
            await process.settle(deliveries)
    left = [it for it in count_to(SEGMENTS) if it["n"] + 1 not in deleted]
    assert_once(process.received, left)


async def test_a_queue_is_empty_when_everything_is_settled() -> None:
    messages = await messages_in(retention="workqueue")
    await messages.put(count_to(SEGMENTS))
    async with process_of(messages) as process:
        await process.admit()
        assert await messages.left() == SEGMENTS
        await process.settle_all(SEGMENTS)
        await eventually(messages.left, 0)


async def test_a_stream_of_the_same_name_is_another_one() -> None:
    messages = await messages_in()
    await messages.put(count_to(SEGMENTS))
    async with process_of(messages) as process:
        old = (await process.admit())[0].position
        assert old is not None
        roots = {it.root for it in await process.read(await process.desk.uncommitted())}
        await messages.delete()
        await messages.create()
        await messages.put(count_to(5))
        deliveries = await process.admit()
        again = await process.read(deliveries)
        assert [it.segment for it in again] == count_to(5)
        assert roots.isdisjoint(it.root for it in again)
        with pytest.raises(FileNotFoundError, match="messages 1 to 3 are lost"):
            list(process.connector.read(old))
        await process.connector.on_committed([old])
        assert await messages.unacknowledged() == 5


async def test_a_stream_that_went_back_is_not_read() -> None:
    messages = await messages_in()
    await messages.put(count_to(3))
    connector = messages.connector()
    await connector.open([])
    try:
        (cut,) = await connector.plan_splits(None, 10)
        with pytest.raises(OSError, match="went back to message 3"):
            await messages_ahead(messages, cut.next_position)
    finally:
        await connector.close()


async def messages_ahead(messages: Messages, end: Position) -> None:
    """Go on behind what the stream has."""
    connector = messages.connector()
    await connector.open([])
    try:
        await connector.plan_splits(end | {"last": 9}, 10)
    finally:
        await connector.close()


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
async def test_what_the_server_delivers_again_does_not_come_again(retention: str) -> None:
    messages = await messages_in(retention=retention)
    config = ConsumerConfig(durable_name="postroad", ack_policy="explicit", ack_wait=0.1)
    async with client_of(messages.server) as client:
        await client.add_consumer(messages.name, config)
    await messages.put(count_to(SEGMENTS))
    async with process_of(messages) as process:
        held = await process.admit()
        for _ in range(3):
            await asyncio.sleep(0.2)
            await process.settle(await process.admit())
        await process.settle(held)
        assert await process.desk.next_deliveries() == []
        await eventually(messages.unacknowledged, 0)
    assert_once(process.received, count_to(SEGMENTS))


async def test_a_consumer_that_somebody_deletes_is_made_again() -> None:
    messages = await messages_in()
    await messages.put(count_to(SEGMENTS))
    async with process_of(messages) as process, client_of(messages.server) as client:
        await process.settle(await process.admit())
        await client.delete_consumer(messages.name, "postroad")
        await process.settle_all(SEGMENTS)
        await eventually(messages.unacknowledged, 0)
    assert_once(process.received, count_to(SEGMENTS))


async def test_many_messages_are_several_slices() -> None:
    messages = await messages_in()
    count = 12_000
    async with client_of(messages.server) as client:
        waiting = [
            await client.publish_async(f"{messages.name}.x", msgspec.json.encode(it))
            for it in count_to(count)
        ]
        await asyncio.gather(*waiting)
    connector = messages.connector(split_segments=10_000)
    async with process_of(messages, connector, batch_size=count, max_pending=count) as process:
        deliveries = await process.admit()
        assert [it.segments for it in deliveries] == [10_000, 2_000]
        await process.settle(deliveries)
        await eventually(messages.unacknowledged, 0)
    assert_once(process.received, count_to(count))


async def test_segments_in_msgpack() -> None:
    messages = await messages_in()
    await messages.publish(*map(msgspec.msgpack.encode, count_to(5)))
    async with process_of(messages, messages.connector(codec="msgpack")) as process:
        await process.settle_all(5)
    assert_once(process.received, count_to(5))


async def test_a_consumer_with_whole_messages_will_do() -> None:
    messages = await messages_in()
    config = ConsumerConfig(durable_name="postroad", ack_policy="explicit")
    async with client_of(messages.server) as client:
        await client.add_consumer(messages.name, config)
    await messages.put(count_to(SEGMENTS))
    segments, _ = await run_job(messages, SEGMENTS)
    assert len(segments) == SEGMENTS


# Settings.


async def test_a_consumer_of_somebody_else() -> None:
    for config, text in (
        ({"ack_policy": "none"}, "ack_policy is 'none'"),
        ({"ack_policy": "explicit", "deliver_subject": "x"}, "deliver_subject is 'x'"),
        ({"ack_policy": "explicit", "filter_subject": "NAME.a"}, "filter_subject"),
    ):
        messages = await messages_in()
        if "filter_subject" in config:
            config = config | {"filter_subject": f"{messages.name}.a"}
        async with client_of(messages.server) as client:
            theirs = ConsumerConfig(durable_name="postroad", **config)
            await client.add_consumer(messages.name, theirs)
        with pytest.raises(ConfigError, match=f"durable 'postroad' .*{text}"):
            await messages.connector().open([])


async def test_a_queue_that_has_another_reader() -> None:
    messages = await messages_in(retention="workqueue")
    async with client_of(messages.server) as client:
        theirs = ConsumerConfig(durable_name="theirs", ack_policy="explicit")
        await client.add_consumer(messages.name, theirs)
    with pytest.raises(ConfigError, match="durable 'postroad' cannot be created"):
        await messages.connector().open([])


def test_a_wrong_option_is_named() -> None:
    for options, option in (
        ({"servers": "127.0.0.1:4222"}, "servers"),
        ({"servers": []}, "servers"),
        ({"servers": [URL, 1]}, "servers"),
        ({"stream": ""}, "stream"),
        ({"stream": "a.b"}, "stream"),
        ({"subject": "a b"}, "subject"),
        ({"durable": "a*"}, "durable"),
        ({"codec": "xml"}, "codec"),
        ({"bounded": "yes"}, "bounded"),
        ({"split_segments": 0}, "split_segments"),
        ({"split_bytes": True}, "split_bytes"),
        ({"tls_cert": "x"}, "tls_cert"),
        ({"colour": "red"}, "colour"),
    ):
        given: dict[str, Any] = {"servers": URL, "stream": "s", **options}
        with pytest.raises(ConfigError, match=option):
            make_input(Task(name="in", type=TaskType.INPUT, connector="jetstream", options=given))


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nats.aio.client", None)
    with pytest.raises(MissingExtraError, match="the extra 'jetstream'"):
        await JetStreamInput(URL, "s").open([])


# Who may come in.

LOCKED = "authorization { user: who, password: hush }"


async def open_once(**options: Any) -> None:
    connector = JetStreamInput(**options)
    await connector.open([])
    await connector.close()


async def create_stream(**options: Any) -> None:
    connection = await nats.connect(**options)
    await connection.jetstream().add_stream(name="s", subjects=["s"])
    await connection.close()


async def test_user_and_password() -> None:
    with nats_server(LOCKED) as server:
        with_user = server.url.replace("//", "//who:hush@")
        await create_stream(servers=with_user)
        await open_once(servers=with_user, stream="s")
        await open_once(servers=[server.url], stream="s", user="who", password="hush")
        with pytest.raises(PermissionError) as refused:
            await open_once(servers=with_user.replace("hush", "guess"), stream="s")
        assert "guess" not in str(refused.value)


async def test_a_token() -> None:
    with nats_server("authorization { token: hush }") as server:
        await create_stream(servers=server.url, token="hush")
        await open_once(servers=server.url, stream="s", token="hush")
        with pytest.raises(PermissionError):
            await open_once(servers=server.url, stream="s")


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[tuple[NatsServer, dict[str, str]]]:
    """A server that wants certificates, and the options of one who has them."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        tmp_path / "both.pem"
    )
    both, ca = tmp_path / "both.pem", tmp_path / "ca.pem"
    config = f'tls {{ cert_file: "{both}", key_file: "{both}", ca_file: "{ca}", verify: true }}'
    with nats_server(config) as server:
        yield server, {"tls_ca": str(ca), "tls_cert": str(both), "tls_key": str(both)}


async def test_tls(
    tls_server: tuple[NatsServer, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream_client, "_CONNECT_S", 1.0)
    server, options = tls_server
    url = server.url.replace("nats:", "tls:")
    with pytest.raises(ConfigError, match="there is no stream 's'"):
        await open_once(servers=url, stream="s", **options)
    with pytest.raises(OSError, match="stream 's' of NATS"):
        await open_once(servers=url, stream="s")
    with pytest.raises(ConfigError, match="tls_ca"):
        await open_once(servers=url, stream="s", tls_ca="nowhere.pem")


async def test_the_next_server_is_asked_if_one_is_down() -> None:
    messages = await messages_in()
    connector = messages.connector(servers=["nats://127.0.0.1:1", messages.server.url])
    await messages.put(count_to(5))
    async with process_of(messages, connector) as process:
        await process.settle_all(5)
    assert_once(process.received, count_to(5))
