"""The names of topics, made and read."""

from itertools import product

import pytest

from postroad.core.errors import ConfigError, MalformedPayloadError
from postroad.services.kinds import GOSSIP, Kind
from postroad.services.schema import ActionInfo, EventInfo, ServiceInfo
from postroad.services.topics import (
    BROADCAST,
    TOPIC_LENGTH_MAX,
    BalancedTopic,
    Topic,
    Topics,
    is_heard_on_nats,
    nats_pattern,
    nats_subject,
)
from tests.support.cases import each, naming

PLAIN = Topics("me")
DEV = Topics("me", "dev")
TARGETED = [kind for kind in Kind if kind not in GOSSIP]


def test_names_of_topics_are_read_back() -> None:
    assert PLAIN.name_of(Kind.DISCOVER) == "MOL.DISCOVER"
    assert DEV.name_of(Kind.REQUEST, "node-2") == "MOL-dev.REQ.node-2"
    topics = Topics("me", "dev", separator="/")
    assert topics.name_of(Kind.RESPONSE, "you") == "MOL-dev/RES/you"
    assert topics.parse("MOL-dev/RES/you.there") == Topic(Kind.RESPONSE, "you.there")
    topics = Topics("me")
    names = {topics.name_of(Kind.RESPONSE, f"node-{number}") for number in range(10_000)}
    assert len(names) == 10_000
    assert topics.name_of(Kind.RESPONSE, "node-1") == "MOL.RES.node-1"
    for kind, node_id in product(TARGETED, ["you", "host.example-17", "a b", "MOL"]):
        assert DEV.parse(DEV.name_of(kind, node_id)) == Topic(kind, node_id), (kind, node_id)
    for kind in BROADCAST:
        assert DEV.parse(DEV.name_of(kind)) == Topic(kind), kind


def test_subscriptions_of_a_node() -> None:
    assert DEV.subscriptions() == (
        "MOL-dev.EVENT.me",
        "MOL-dev.REQ.me",
        "MOL-dev.RES.me",
        "MOL-dev.DISCOVER",
        "MOL-dev.DISCOVER.me",
        "MOL-dev.INFO",
        "MOL-dev.INFO.me",
        "MOL-dev.DISCONNECT",
        "MOL-dev.HEARTBEAT",
        "MOL-dev.PING",
        "MOL-dev.PING.me",
        "MOL-dev.PONG.me",
    )
    assert DEV.subscriptions(has_acks=True) == (
        *DEV.subscriptions(),
        "MOL-dev.EVENTACK.me",
        "MOL-dev.STREAM.me",
    )


def test_balanced_topics_are_made_and_read_back() -> None:
    service = ServiceInfo(
        name="posts",
        full_name="v2.posts",
        actions=(ActionInfo(name="v2.posts.find"),),
        events=(EventInfo(name="user.*"), EventInfo(name="user.*", group="other")),
    )
    assert list(DEV.balanced([service, service])) == [
        BalancedTopic("MOL-dev.REQB.v2.posts.find", Kind.REQUEST, "v2.posts.find"),
        BalancedTopic("MOL-dev.EVENTB.posts.user.*", Kind.EVENT, "posts"),
        BalancedTopic("MOL-dev.EVENTB.other.user.*", Kind.EVENT, "other"),
    ]
    request = DEV.parse(DEV.for_request("v2.posts.find"))
    event = DEV.parse(DEV.for_event("posts", "user.created"))
    assert request == Topic(Kind.REQUEST, action="v2.posts.find")
    assert event == Topic(Kind.EVENT, group_and_event="posts.user.created")
    assert request.is_balanced
    assert event.is_balanced
    assert not DEV.parse(DEV.name_of(Kind.REQUEST, "you")).is_balanced


@each(
    "",
    "MOL",
    "MOL-dev",
    "MOL-dev.",
    "MOL.REQ.me",
    "MOL-development.REQ.me",
    "MOL-dev.REQ",
    "MOL-dev.REQ.",
    "MOL-dev.REQB",
    "MOL-dev.EVENTB",
    "MOL-dev.EVENTB.",
    "MOL-dev.DISCOVER.",
    "MOL-dev.UNKNOWN.me",
    "MOL-dev.GOSSIP_REQ.me",
    "MOL-dev.REQ." + "x" * TOPIC_LENGTH_MAX,
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(MalformedPayloadError):
        DEV.parse(name)


def test_names_that_would_do_harm_are_refused() -> None:
    for kind in (Kind.REQUEST, Kind.RESPONSE, Kind.EVENT, Kind.PONG):
        with naming(kind), pytest.raises(ConfigError, match="not to all"):
            DEV.name_of(kind)
    for kind in sorted(GOSSIP):
        with naming(kind), pytest.raises(ConfigError):
            DEV.name_of(kind, "you")
    for name in ("", "a\r\nb", "\x00", "x" * TOPIC_LENGTH_MAX):
        with naming(name), pytest.raises(ConfigError):
            DEV.name_of(Kind.RESPONSE, name)
        with naming(name), pytest.raises(ConfigError):
            DEV.for_request(name)
        with naming(name), pytest.raises(ConfigError):
            DEV.for_event("group", name)
        with naming(name), pytest.raises(ConfigError):
            DEV.for_event(name, "event")


@each(
    ("MOL.EVENTB.users.user.created", "MOL.EVENTB.users.user.created"),
    ("MOL.EVENTB.users.user.*", "MOL.EVENTB.users.user.*"),
    ("MOL.EVENTB.users.user.**", "MOL.EVENTB.users.user.>"),
    ("MOL.EVENTB.users.**.created", "MOL.EVENTB.users.>"),
    ("MOL.EVENTB.users.**", "MOL.EVENTB.users.>"),
    ("MOL.EVENTB.users.us*", "MOL.EVENTB.users.us*"),
)
def test_patterns_for_nats(topic: str, pattern: str) -> None:
    assert nats_pattern(topic) == pattern


@each(
    ("user.created", True),
    ("user.*", True),
    ("user.**", True),
    ("**", True),
    ("*.created", True),
    ("**.created", True),
    ("us*", False),
    ("user**", False),
    ("user.?", False),
    ("user.*d", False),
    ("user..x", False),
)
def test_which_patterns_nats_hears(pattern: str, is_heard: bool) -> None:
    assert is_heard_on_nats(pattern) is is_heard


def test_subjects_and_patterns_for_nats_are_checked() -> None:
    assert nats_subject("MOL-dev.REQ.node-2") == "MOL-dev.REQ.node-2"
    with pytest.raises(ConfigError):
        nats_pattern("MOL.EVENTB.a b.c")
    for topic in ("MOL.RES.a b", "MOL.RES.*", "MOL.RES.>", "MOL.RES..a", "MOL."):
        with naming(topic), pytest.raises(ConfigError):
            nats_subject(topic)
