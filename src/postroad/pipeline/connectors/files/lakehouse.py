"""Tables of Delta Lake and Apache Iceberg: Parquet files that one commit appends to the table."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from postroad.core.errors import ConfigError, MissingExtraError
from postroad.pipeline.connectors.connector import Committable
from postroad.pipeline.connectors.files.parquet import ParquetOutput

if TYPE_CHECKING:
    import pyarrow

_PROPERTY = "postroad."


class LakehouseOutput(ParquetOutput):
    """Writes Parquet files into the directory of a table, and appends them together.

    What is committed has a number that the table keeps, so that nothing is appended twice.
    """

    commits_together = True

    async def commit_together(
        self, application: str, pending: Sequence[tuple[int, Committable]]
    ) -> None:
        await asyncio.to_thread(self._commit_together, application, pending)

    def _commit_together(
        self, application: str, pending: Sequence[tuple[int, Committable]]
    ) -> None:
        try:
            last = self._last_version(application)
            files = [staged["file"] for number, staged in pending if number > last]
            for name in files:
                self._publish(name)
            if files:
                self._append(files, application, max(number for number, _ in pending))
        except (OSError, ConfigError):
            raise
        except Exception as error:
            # Both libraries raise all kinds of errors when others commit, or servers are away.
            raise OSError(f"table {self._shown} cannot be appended to: {error}") from error

    @property
    @abstractmethod
    def _shown(self) -> str:
        """The table, for people."""

    @abstractmethod
    def _last_version(self, application: str) -> int:
        """The number of the last commit of an application; -1 if there was none."""

    @abstractmethod
    def _append(self, files: Sequence[str], application: str, version: int) -> None:
        """Append files of the directory to the table, in one commit."""


class DeltaOutput(LakehouseOutput):
    """Appends rows to a table of Delta Lake, each once.

    Args:
        path: the directory of the table; on a cluster every machine must have it.
        schema: types by name, as for Parquet; needed if the table does not exist, and is made then.
    """

    def __init__(self, path: str, schema: Mapping[str, str] | None = None) -> None:
        super().__init__(path, schema)

    @property
    def _shown(self) -> str:
        return str(self._directory)

    def _make_schema(self) -> pyarrow.Schema:
        import pyarrow

        delta = _import_delta()
        if not delta.DeltaTable.is_deltatable(str(self._directory)):
            schema = super()._make_schema()
            if schema is None:
                raise ConfigError(
                    f"there is no Delta table {self._directory};"
                    " give the option 'schema' to create it"
                )
            delta.DeltaTable.create(str(self._directory), schema, mode="ignore")
        return pyarrow.schema(delta.DeltaTable(str(self._directory)).schema())

    def _last_version(self, application: str) -> int:
        table = _import_delta().DeltaTable(str(self._directory))
        version = table.transaction_version(application)
        return -1 if version is None else int(version)

    def _append(self, files: Sequence[str], application: str, version: int) -> None:
        delta = _import_delta()
        from deltalake.transaction import AddAction

        table = delta.DeltaTable(str(self._directory))
        actions = []
        for name in files:
            status = os.stat(self._directory / name)
            rows = _count_rows(self._directory / name)
            changed_ms = status.st_mtime_ns // 1_000_000
            stats = f'{{"numRecords":{rows}}}'
            actions.append(AddAction(name, status.st_size, {}, changed_ms, True, stats))
        properties = delta.CommitProperties(
            app_transactions=[delta.Transaction(application, version)]
        )
        table.create_write_transaction(
            actions, "append", table.schema(), commit_properties=properties
        )


def _import_delta() -> Any:
    try:
        import deltalake
    except ImportError:
        raise MissingExtraError("delta", "a table of Delta Lake") from None
    return deltalake


def _count_rows(path: Path) -> int:
    import pyarrow.parquet

    return int(pyarrow.parquet.read_metadata(path).num_rows)


class IcebergOutput(LakehouseOutput):
    """Appends rows to a table of Apache Iceberg, each once.

    Args:
        table: its name, such as `sales.orders`; it must exist, and be in a directory that every
            machine has.
        catalog: properties of the catalog, as PyIceberg has them, such as `type` and `uri`; its
            `name` is `default` if there is none.
    """

    def __init__(self, table: str, catalog: Mapping[str, str]) -> None:
        if not isinstance(catalog, Mapping):
            raise ConfigError(f"option 'catalog' is {catalog!r}; it must have properties by name")
        self._name = table
        self._catalog = dict(catalog)
        self._catalog_name = self._catalog.pop("name", "default")
        location = urlsplit(self._load().location())
        if location.scheme not in ("", "file"):
            raise ConfigError(
                f"table {table!r} is at {location.geturl()!r}; it must be in a directory"
            )
        super().__init__(os.path.join(location.path, "data"))

    @property
    def _shown(self) -> str:
        return self._name

    def _load(self) -> Any:
        try:
            from pyiceberg.catalog import load_catalog
            from pyiceberg.exceptions import NoSuchTableError
        except ImportError:
            raise MissingExtraError("iceberg", "a table of Apache Iceberg") from None
        try:
            return load_catalog(self._catalog_name, **self._catalog).load_table(self._name)
        except NoSuchTableError as error:
            raise ConfigError(f"there is no Iceberg table {self._name!r}: {error}") from None

    def _make_schema(self) -> pyarrow.Schema:
        import pyarrow

        # Without the numbers of fields: names tell them apart in files that are added.
        schema = self._load().schema().as_arrow()
        return pyarrow.schema([(field.name, field.type) for field in schema])

    def _last_version(self, application: str) -> int:
        versions = [
            int(version)
            for snapshot in self._load().snapshots()
            if snapshot.summary is not None
            and (version := snapshot.summary.additional_properties.get(_PROPERTY + application))
        ]
        return max(versions, default=-1)

    def _append(self, files: Sequence[str], application: str, version: int) -> None:
        self._load().add_files(
            [str(self._directory / name) for name in files],
            snapshot_properties={_PROPERTY + application: str(version)},
        )
