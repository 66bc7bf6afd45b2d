"""Roles, statuses and the defaults of frames."""

from postroad.wire.frames import ConnectionRole, ReplyFrame, ReplyStatus, RequestFrame


def test_roles_statuses_and_defaults_are_those_of_the_source_system() -> None:
    assert ConnectionRole.CLIENT.opposite is ConnectionRole.SERVER
    assert ConnectionRole.SERVER.opposite is ConnectionRole.CLIENT
    assert [(status.value, status.name) for status in ReplyStatus] == [
        (0, "OK"),
        (1, "NO_HANDLER"),
        (2, "HANDLER_FAILED"),
        (3, "PROTOCOL_FAILED"),
        (4, "STOPPING"),
    ]
    request = RequestFrame(1, "echo", b"x")
    assert (request.timeout_ms, request.one_way) == (0, False)
    reply = ReplyFrame(1, ReplyStatus.OK, b"x")
    assert (reply.code, reply.retryable) == (0, False)
