"""Databases that a copy takes the place of, while a node works on them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import psycopg

from postroad.durable import MemoryDisk, MemoryStore, PostgresStore, Store
from tests.support.deadlines import DEADLINE_S


class Replicated(Protocol):
    """A database with a copy that may lag behind."""

    def store(self) -> Store:
        """A store in it."""

    def copy(self) -> None:
        """Have the copy catch up; whoever is connected may lose the connection."""

    def fail_over(self) -> None:
        """Have the copy take its place; everybody loses the connection."""

    def execute(self, statement: str) -> None:
        """Have somebody else change what is committed."""


class ReplicatedDisk:
    """A disk in memory."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self._copy = b""

    def store(self) -> Store:
        return MemoryStore(self.disk)

    def copy(self) -> None:
        self._copy = self.disk.backup()

    def fail_over(self) -> None:
        self.disk.fail_over(self._copy)

    def execute(self, statement: str) -> None:
        self.disk.execute(statement)


class ReplicatedDatabase:
    """A database of a PostgreSQL server, and another one that can be given its name."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]

    def store(self) -> Store:
        return PostgresStore(self.dsn)

    def copy(self) -> None:
        with self._alone() as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {self._name}_copy".encode())
            statement = f"CREATE DATABASE {self._name}_copy TEMPLATE {self._name}"
            connection.execute(statement.encode())

    def fail_over(self) -> None:
        with self._alone() as connection:
            connection.execute(f"DROP DATABASE {self._name}".encode())
            statement = f"ALTER DATABASE {self._name}_copy RENAME TO {self._name}"
            connection.execute(statement.encode())

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("SET search_path = postroad")
            connection.execute(statement.encode())

    @contextmanager
    def _alone(self) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
        """A connection for one who has the database to himself."""
        dsn = psycopg.conninfo.make_conninfo(self.dsn, dbname="postgres")
        with psycopg.connect(dsn, autocommit=True) as connection:
            self._allow(connection, "false")
            deadline = time.monotonic() + DEADLINE_S
            while connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
                (self._name,),
            ).fetchall():
                assert time.monotonic() < deadline
            yield connection
            self._allow(connection, "true")

    def _allow(self, connection: psycopg.Connection[tuple[object, ...]], value: str) -> None:
        connection.execute(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS {value}".encode())
