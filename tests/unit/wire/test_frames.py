"""Roles, statuses and the defaults of frames."""

from postroad.wire.frames import Reply, Request, Role, Status


def test_the_other_role() -> None:
    assert Role.CLIENT.other is Role.SERVER
    assert Role.SERVER.other is Role.CLIENT


def test_statuses_are_those_of_the_source_system_and_one_more() -> None:
    assert [(status.value, status.name) for status in Status] == [
        (0, "OK"),
        (1, "NO_HANDLER"),
        (2, "HANDLER_FAILED"),
        (3, "PROTOCOL_FAILED"),
        (4, "STOPPING"),
    ]


def test_defaults_are_what_older_versions_can_say() -> None:
    request = Request(1, "echo", b"x")
    assert (request.timeout_ms, request.one_way) == (0, False)
    reply = Reply(1, Status.OK, b"x")
    assert (reply.code, reply.retryable) == (0, False)
