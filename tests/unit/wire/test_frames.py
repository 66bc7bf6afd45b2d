"""Roles, statuses and the defaults of frames."""

from postroad.wire.frames import Reply, Request, Role, Status


def test_roles_statuses_and_defaults_are_those_of_the_source_system() -> None:
    assert Role.CLIENT.other is Role.SERVER
    assert Role.SERVER.other is Role.CLIENT
    assert [(status.value, status.name) for status in Status] == [
        (0, "OK"),
        (1, "NO_HANDLER"),
        (2, "HANDLER_FAILED"),
        (3, "PROTOCOL_FAILED"),
        (4, "STOPPING"),
    ]
    request = Request(1, "echo", b"x")
    assert (request.timeout_ms, request.one_way) == (0, False)
    reply = Reply(1, Status.OK, b"x")
    assert (reply.code, reply.retryable) == (0, False)
