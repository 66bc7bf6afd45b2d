"""Files of comma-separated values, whose first line has the names."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from io import BytesIO
from itertools import accumulate
from typing import Any, BinaryIO

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors.connector import (
    Position,
    RawRecords,
    decode_segment,
    encode_segment,
)
from postroad.pipeline.connectors.files.json_lines import SETTLE_S, SPLIT_BYTES, JsonLinesInput
from postroad.pipeline.connectors.options import accept_old_names, check_types
from postroad.pipeline.job import Segment

# A quotation mark that is never closed must not take the rest of the file with it.
_RECORD_BYTES_MAX = 1024 * 1024
_LINE_BYTES_MAX = 64 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_QUOTE = b'"'


def _to_bool(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.lower()]


_TYPES: Mapping[str, Callable[[str], Any]] = {
    "bool": _to_bool,
    "float": float,
    "int": int,
    "text": str,
}


class CsvInput(JsonLinesInput):
    """Reads files, new ones in the order of their names. Each has a first line with names.

    Values are text, unless `columns` has another type for a name: `int`, `float` or `bool`; where
    these are empty, they are None. Values in quotation marks may have line ends in them. Records
    with too few or too many values, or with values of another type, are no segments. A value has
    at most 128 KiB.

    Args:
        path: of a file, or a pattern such as `in/*.csv`; on a cluster every machine must have it.
        delimiter: what stands between values.
        columns: types by name.
        split_bytes: about how long a split is.
        settle_s: how long a file must not grow until a last record without a line end is read.
    """

    @accept_old_names(slice_bytes="split_bytes")
    def __init__(
        self,
        path: str,
        delimiter: str = ",",
        columns: Mapping[str, str] | None = None,
        split_bytes: int = SPLIT_BYTES,
        settle_s: float = SETTLE_S,
    ) -> None:
        super().__init__(path, split_bytes, settle_s)
        self._delimiter = _check_delimiter(delimiter)
        # Whether the last record that was read has a quotation mark that the file does not close.
        self._is_quote_open = False
        self._columns = {} if columns is None else check_types("columns", columns)
        for name, type in self._columns.items():
            if type not in _TYPES:
                known = ", ".join(sorted(_TYPES))
                raise ConfigError(
                    f"option 'columns': {name!r} is {type!r}; it must be one of {known}"
                )

    def _find_start(self, file: BinaryIO, name: str, start: int) -> int:
        file.seek(0)
        header = self._read_record(file)
        if header and not (self._is_complete(header) or self._is_settled(file, name)):
            return -1
        return max(start, self._read_header(file)[1])

    def _is_complete(self, record: bytes) -> bool:
        return super()._is_complete(record) and not self._is_quote_open

    def _read_header(self, file: BinaryIO) -> tuple[list[str], int]:
        """The names, and how long the record is that has them."""
        file.seek(0)
        record = self._read_record(file)
        try:
            return self._parse(record.removeprefix(_BOM)), len(record)
        except (csv.Error, UnicodeError, ValueError) as error:
            raise OSError(f"{file.name} has no header: {error}") from error

    def _read_record(self, file: BinaryIO) -> bytes:
        self._is_quote_open = False
        line = file.readline(_LINE_BYTES_MAX)
        if len(line) == _LINE_BYTES_MAX:
            raise OSError(f"a line has {_LINE_BYTES_MAX} bytes or more")
        if _QUOTE not in line:
            return line
        after_line = file.tell()
        lines = [line]

        def feed() -> Iterator[str]:
            yield line.decode(errors="replace")
            length = len(line)
            while length < _RECORD_BYTES_MAX and (more := file.readline(_LINE_BYTES_MAX)):
                length += len(more)
                lines.append(more)
                yield more.decode(errors="replace")

        try:
            next(csv.reader(feed(), delimiter=self._delimiter, strict=True))
        except csv.Error:
            # It is no record, and what follows it may be one, unless its end is still missing.
            self._is_quote_open = not file.read(1)
            file.seek(after_line)
            return line
        return b"".join(lines)

    def _parse(self, record: bytes) -> list[str]:
        text = record.decode()
        if '"' not in text:
            # The same, and much quicker.
            return text.rstrip("\r\n").split(self._delimiter)
        return next(csv.reader([text], delimiter=self._delimiter, strict=True))

    def read(self, place: Position) -> Iterator[RawRecords]:
        name, start, stop = place["file"], place["start"], place["stop"]
        with self._open_file(name) as file:
            names, _ = self._read_header(file)
            file.seek(start)
            data = file.read(stop - start)
        if len(data) < stop - start:
            raise OSError(f"{name} became shorter while it was read")
        records = list(self._split(data))
        starts = accumulate(map(len, records), initial=start)
        filled = [
            (at, record) for at, record in zip(starts, records, strict=False) if record.strip()
        ]
        positions = [at for at, _ in filled]
        yield RawRecords(name, positions, [self._pack(names, record) for _, record in filled])

    def _split(self, data: bytes) -> Iterator[bytes]:
        file = BytesIO(data)
        if _QUOTE not in data:
            return file
        return iter(partial(self._read_record, file), b"")

    def _pack(self, names: list[str], record: bytes) -> bytes:
        try:
            values: list[Any] = self._parse(record)
            segment = dict(zip(names, values, strict=True))
            for name, type in self._columns.items():
                segment[name] = _convert(segment[name], type)
            return encode_segment(segment)
        except (csv.Error, LookupError, OverflowError, ValueError):
            return _as_undecodable(record)

    @property
    def decode(self) -> Callable[[bytes], Segment]:
        return _decode


def _check_delimiter(value: object) -> str:
    if not isinstance(value, str) or len(value) != 1 or value in '"\r\n' or not value.isascii():
        raise ConfigError(f"option 'delimiter' is {value!r}; it must be one character")
    return value


def _convert(text: str, type: str) -> Any:
    return _TYPES[type](text) if text or type == "text" else None


def _as_undecodable(record: bytes) -> bytes:
    """A record as nothing that can be taken for a segment."""
    try:
        _decode(record)
    except ValueError:
        return record
    return repr(record).encode()


def _decode(raw: bytes) -> Segment:
    try:
        return decode_segment(raw)
    except ValueError:
        raise ValueError(
            "the record does not match the header or the types of the columns"
        ) from None
