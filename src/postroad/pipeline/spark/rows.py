"""Records of connectors as rows of Spark, for the data source `postroad`."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from postroad.pipeline.connectors.connector import InputConnector, UndecodableRecord
from postroad.pipeline.coordinator.records import decode_or_reject

ROWS = StructType().add("id", LongType()).add("segment", StringType()).add("raw", BinaryType())
QUEUE_ROWS = (
    StructType()
    .add("id", LongType())
    .add("sender", StringType())
    .add("key", StringType())
    .add("headers", MapType(StringType(), StringType()))
    .add("payload", BinaryType())
    .add("sent", TimestampType())
)

_encode_json = msgspec.json.Encoder(enc_hook=str).encode


class RowConverter:
    """Makes rows of records: of their bytes, `raw`, and of what else is known of them.

    Args:
        schema: what the rows are to have.
        connector: decodes the bytes.
    """

    def __init__(self, schema: StructType, connector: InputConnector) -> None:
        self._columns = to_arrow_schema(schema, timezone="UTC")
        self._connector = connector
        self._has_segments = schema == ROWS
        self._is_typed = schema not in (ROWS, QUEUE_ROWS)
        self._keeps_unfit = "_raw" in self._columns.names

    def convert(self, records: list[dict[str, Any]]) -> pa.RecordBatch:
        """The rows of some records.

        Raises:
            ValueError: one of them does not fit the schema.
        """
        if self._is_typed:
            columns = self._convert_typed(records)
        else:
            if self._has_segments:
                for record in records:
                    self._set_segment(record)
            columns = [
                pa.array([record.get(field.name) for record in records], field.type)
                for field in self._columns
            ]
        return pa.RecordBatch.from_arrays(columns, schema=self._columns)

    def _set_segment(self, record: dict[str, Any]) -> None:
        segment = decode_or_reject(record["raw"], self._connector.decode)
        if not isinstance(segment, UndecodableRecord):
            record["segment"], record["raw"] = _encode_json(segment).decode(), None

    def _convert_typed(self, records: list[dict[str, Any]]) -> list[pa.Array]:
        segments: list[dict[str, Any] | None] = []
        for record in records:
            segment = decode_or_reject(record["raw"], self._connector.decode)
            if isinstance(segment, UndecodableRecord):
                self._reject(record, segment.reason)
                segments.append(None)
            else:
                segments.append(segment)
        while True:
            try:
                return [self._column(field, records, segments) for field in self._columns]
            except _UnfitValueError as error:
                self._reject(records[error.row], str(error))
                segments[error.row] = None

    def _reject(self, record: dict[str, Any], reason: str) -> None:
        if not self._keeps_unfit:
            shown = record["raw"][:_SHOWN_BYTES]
            raise ValueError(
                f"a row does not fit the schema: {reason}; it is {shown!r}. With a column"
                " '_raw binary' in the schema such rows are read, with their bytes there"
            )

    def _column(
        self, field: pa.Field, records: list[dict[str, Any]], segments: list[dict[str, Any] | None]
    ) -> pa.Array:
        if field.name == "_raw":
            pairs = zip(records, segments, strict=True)
            values = [record["raw"] if segment is None else None for record, segment in pairs]
        elif field.name.startswith("_"):
            values = [record.get(field.name[1:]) for record in records]
        else:
            values = [None if segment is None else segment.get(field.name) for segment in segments]
        try:
            return _to_array(values, field.type)
        except _UNFIT:
            for row, value in enumerate(values):
                try:
                    _to_array([value], field.type)
                except _UNFIT as error:
                    raise _UnfitValueError(row, f"{field.name!r} is {error}") from None
            raise


_SHOWN_BYTES = 200
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


class _UnfitValueError(Exception):
    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


def _to_array(values: list[Any], type_: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type_)
    except _UNFIT:
        # Dates, times and decimals are texts in JSON.
        return pa.array(values).cast(type_)
