"""What is particular about Redis streams."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
from redis.asyncio import Redis

from postroad.core.errors import ConfigError, MissingExtraError
from postroad.pipeline import Task, TaskType
from postroad.pipeline.connectors import RedisStreamInput, make_input
from tests.contract.pipeline_media_harness import (
    SEGMENTS,
    assert_once,
    count_to,
    dead_in,
    process_of,
    run_job,
)
from tests.contract.server_input_behaviour import eventually
from tests.contract.test_redis_stream_medium import Entries
from tests.support.servers.process import free_port
from tests.support.servers.redis import RedisServer, redis_server, shared_redis

URL = "redis://127.0.0.1:6379"


@pytest.fixture
async def entries() -> Entries:
    created = Entries(shared_redis())
    await created.create()
    return created


# What is lost.


async def test_what_was_trimmed_before_it_was_cut_is_missed(
    entries: Entries, caplog: pytest.LogCaptureFixture
) -> None:
    await entries.put(count_to(SEGMENTS))
    async with process_of(entries) as process, entries.client() as client:
        await process.settle(await process.admit())
        await client.xtrim(entries.key, maxlen=10, approximate=False)
        assert await process.desk.next_deliveries() == []
        assert re.search(rf"8 entries after .* are lost: .*{entries.key}", caplog.text)
        assert await process.desk.next_deliveries() == []
        assert caplog.text.count("8 entries") == 1, "it is said once"


async def test_what_was_trimmed_to_nothing_is_missed(
    entries: Entries, caplog: pytest.LogCaptureFixture
) -> None:
    await entries.put(count_to(SEGMENTS))
    async with process_of(entries) as process, entries.client() as client:
        await process.settle(await process.admit())
        await client.xtrim(entries.key, maxlen=0, approximate=False)
        assert await process.desk.next_deliveries() == []
        assert "18 entries" in caplog.text


async def test_what_was_trimmed_before_it_was_read_is_missed(entries: Entries) -> None:
    await entries.put(count_to(SEGMENTS))
    async with process_of(entries) as process, entries.client() as client:
        deliveries = await process.admit()
        await client.xtrim(entries.key, maxlen=SEGMENTS - 2, approximate=False)
        with pytest.raises(FileNotFoundError, match=r"2 of 3 entries from 0-1 to .* are lost"):
            await process.read(deliveries)


async def test_what_is_lost_can_be_skipped(
    entries: Entries, caplog: pytest.LogCaptureFixture
) -> None:
    await entries.put(count_to(SEGMENTS))
    connector = entries.connector(ignore_trimmed=True)
    async with process_of(entries, connector) as process, entries.client() as client:
        deliveries = await process.admit()
        await client.xtrim(entries.key, maxlen=10, approximate=False)
        await process.settle(deliveries)
        assert process.received == []
        await process.settle_all(10)
    assert_once(process.received, count_to(SEGMENTS, SEGMENTS - 10))
    texts = [record.getMessage() for record in caplog.records]
    assert sum("3 of 3 entries" in it for it in texts) == 2
    assert sum("8 entries after" in it for it in texts) == 1


async def test_what_is_trimmed_after_it_was_settled_is_not_missed(entries: Entries) -> None:
    async with process_of(entries) as process, entries.client() as client:
        for start in range(0, SEGMENTS, 5):
            await entries.put(count_to(start + 5, start))
            await process.settle_all(start + 5)
            await client.xtrim(entries.key, maxlen=start % 3, approximate=False)
    async with process_of(entries) as again:
        assert await again.desk.next_deliveries() == []
    assert_once(process.received, count_to(SEGMENTS))


async def test_a_stream_that_was_trimmed_before_is_read_from_what_it_has(
    entries: Entries,
) -> None:
    await entries.put(count_to(SEGMENTS))
    async with entries.client() as client:
        await client.xtrim(entries.key, maxlen=10, approximate=False)
    async with process_of(entries) as process:
        await process.settle_all(10)
    assert_once(process.received, count_to(SEGMENTS, SEGMENTS - 10))


# What entries have.


async def test_fields_are_a_segment_where_there_is_no_other(entries: Entries) -> None:
    await entries.add({"n": b"0", "text": "ö".encode()}, {"data": b'{"n": 1}'})
    async with process_of(entries) as process:
        await process.settle_all(2)
    segments = [it.segment for it in process.received]
    assert segments == [{"n": "0", "text": "ö"}, {"n": 1}]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
async def test_fields_that_are_no_text_are_no_segment(entries: Entries, codec: str) -> None:
    encode = {"json": msgspec.json.encode, "msgpack": msgspec.msgpack.encode}[codec]
    await entries.add({"a": b"\xff"}, *({"data": encode(it)} for it in count_to(3)))
    entries.more = {"codec": codec}
    segments, _ = await run_job(entries, 3)
    assert len(segments) == 3
    (dead,) = await dead_in(entries.store())
    assert b"a=\xff" in dead.segment


async def test_another_field_and_another_codec(entries: Entries) -> None:
    await entries.add(*({"body": msgspec.msgpack.encode(it), "x": b"y"} for it in count_to(5)))
    connector = entries.connector(field="body", codec="msgpack")
    async with process_of(entries, connector) as process:
        await process.settle_all(5)
    assert_once(process.received, count_to(5))


async def test_long_entries_are_cut_into_many_slices(entries: Entries) -> None:
    text = "x" * 300_000
    segments = [{"n": n, "text": text} for n in range(30)]
    await entries.put(segments)
    connector = entries.connector(split_segments=100, split_bytes=1_000_000)
    async with process_of(entries, connector, batch_size=30) as process:
        deliveries = await process.admit()
        assert [it.segments for it in deliveries] == [4] * 7 + [2]
        await process.settle(deliveries)
        await eventually(entries.unacknowledged, 0)
    assert_once(process.received, segments)


async def test_more_entries_than_are_acknowledged_at_once(entries: Entries) -> None:
    count = 2_500
    async with entries.client() as client, client.pipeline(transaction=False) as pipeline:
        for segment in count_to(count):
            pipeline.xadd(entries.key, {"data": msgspec.json.encode(segment)})
        await pipeline.execute()
    connector = entries.connector(split_segments=10_000)
    async with process_of(entries, connector, batch_size=count, max_pending=count) as process:
        await process.settle(await process.admit())
        await eventually(entries.unacknowledged, 0)
    assert_once(process.received, count_to(count))


# Groups.


async def test_a_group_that_somebody_destroys_is_made_again(entries: Entries) -> None:
    await entries.put(count_to(SEGMENTS))
    async with process_of(entries) as process, entries.client() as client:
        await process.settle(await process.admit())
        await client.xgroup_destroy(entries.key, "postroad")
        await process.settle_all(SEGMENTS)
        await eventually(entries.unacknowledged, 0)
    assert_once(process.received, count_to(SEGMENTS))


async def test_a_group_that_somebody_sets_back_changes_nothing(entries: Entries) -> None:
    await entries.put(count_to(SEGMENTS))
    async with process_of(entries) as process, entries.client() as client:
        held = await process.admit()
        await process.settle(await process.admit())
        await client.xgroup_setid(entries.key, "postroad", "0")
        await process.settle(held)
        await process.settle_all(SEGMENTS)
        await eventually(entries.unacknowledged, 0)
    assert_once(process.received, count_to(SEGMENTS))


async def test_other_groups_are_left_alone(entries: Entries) -> None:
    await entries.put(count_to(5))
    async with entries.client() as client:
        await client.xreadgroup("others", "someone", {entries.key: ">"}, count=2)
        async with process_of(entries) as process:
            await process.settle_all(5)
        assert (await client.xpending(entries.key, "others"))["pending"] == 2


# Settings.


async def test_a_key_that_is_no_stream() -> None:
    entries = Entries(shared_redis())
    async with entries.client() as client:
        await client.set(entries.key, "text")
    with pytest.raises(ConfigError, match=f"'{entries.key}' .* is not a stream"):
        await entries.connector().open([])


def test_a_wrong_option_is_named() -> None:
    for options, option in (
        ({"url": "127.0.0.1:6379"}, "url"),
        ({"url": 1}, "url"),
        ({"stream": ""}, "stream"),
        ({"group": None}, "group"),
        ({"field": ""}, "field"),
        ({"codec": "xml"}, "codec"),
        ({"bounded": 1}, "bounded"),
        ({"ignore_trimmed": "no"}, "ignore_trimmed"),
        ({"split_segments": -1}, "split_segments"),
        ({"split_bytes": "1"}, "split_bytes"),
        ({"tls_ca": "x"}, "tls_ca"),
        ({"colour": "red"}, "colour"),
    ):
        given = {"url": URL, "stream": "s"} | options
        with pytest.raises(ConfigError, match=option):
            make_input(Task(name="in", type=TaskType.INPUT, connector="redis", options=given))


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtraError, match="the extra 'redis'"):
        await RedisStreamInput(URL, "s").open([])


# Who may come in.


async def open_once(**options: Any) -> None:
    connector = RedisStreamInput(**options)
    await connector.open([])
    await connector.close()


async def test_user_and_password() -> None:
    with redis_server("--requirepass", "hush") as server:
        with_password = server.url.replace("//", "//default:hush@")
        client = Redis.from_url(with_password)
        await client.xgroup_create("s", "others", mkstream=True)
        await client.aclose()
        await open_once(url=with_password, stream="s")
        await open_once(url=server.url, stream="s", user="default", password="hush")
        with pytest.raises(PermissionError) as refused:
            await open_once(url=with_password.replace("hush", "guess"), stream="s")
        assert "guess" not in str(refused.value)
        with pytest.raises(PermissionError):
            await open_once(url=server.url, stream="s")


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[tuple[RedisServer, str, dict[str, str]]]:
    """A server that wants certificates, its URL, and the options of one who has them."""
    authority = trustme.CA()
    both, ca = tmp_path / "both.pem", tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(both)
    port = free_port()
    files = ["--tls-cert-file", both, "--tls-key-file", both, "--tls-ca-cert-file", ca]
    with redis_server("--tls-port", str(port), *map(str, files)) as server:
        options = {"tls_ca": str(ca), "tls_cert": str(both), "tls_key": str(both)}
        yield server, f"rediss://127.0.0.1:{port}", options


async def test_tls(tls_server: tuple[RedisServer, str, dict[str, str]]) -> None:
    _, url, options = tls_server
    with pytest.raises(ConfigError, match="there is no stream 's'"):
        await open_once(url=url, stream="s", **options)
    with pytest.raises(OSError, match="stream 's' of Redis"):
        await open_once(url=url, stream="s")
    with pytest.raises(ConfigError, match="tls_ca"):
        await open_once(url=url, stream="s", tls_ca="nowhere.pem")
