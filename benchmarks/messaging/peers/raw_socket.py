"""The ceiling for bulk data: blocking sockets, no framing, a window of unacknowledged sends."""

from __future__ import annotations

import os
import socket
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.messaging.job import ACKNOWLEDGEMENT, MEBIBYTE

if TYPE_CHECKING:
    from benchmarks.children import Announce
    from benchmarks.messaging.job import Job


def serve(announce: Announce, job: Job) -> None:
    """Answer every `payload_bytes` received with one byte."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        announce(listener.getsockname())
        connection, _ = listener.accept()
        with connection:
            _disable_delay(connection)
            buffer = memoryview(bytearray(job.payload_bytes))
            while _fill(connection, buffer):
                connection.sendall(ACKNOWLEDGEMENT)


def client(announce: Announce, job: Job, address: tuple[str, int]) -> None:
    """Keep `in_flight` payloads unanswered and report MiB/s."""
    payload = os.urandom(job.payload_bytes)
    with socket.create_connection(address) as connection:
        _disable_delay(connection)
        for _ in range(job.in_flight):
            connection.sendall(payload)
        _exchange(connection, payload, job.warmup_s)
        start = perf_counter()
        count = _exchange(connection, payload, job.seconds)
        goodput = count * job.payload_bytes / MEBIBYTE / (perf_counter() - start)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(job.in_flight):  # unread answers would reset the connection
            pass
        announce(goodput)


def _exchange(connection: socket.socket, payload: bytes, seconds: float) -> int:
    """One acknowledgement in, one payload out, for that long; how many there were."""
    deadline = perf_counter() + seconds
    count = 0
    while perf_counter() < deadline:
        if connection.recv(1) != ACKNOWLEDGEMENT:
            raise ValueError("wrong reply")
        connection.sendall(payload)
        count += 1
    return count


def _fill(connection: socket.socket, buffer: memoryview) -> bool:
    """Receive a whole payload; False when the client is gone."""
    position = 0
    while position < len(buffer):
        received = connection.recv_into(buffer[position:])
        if not received:
            return False
        position += received
    return True


def _disable_delay(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
