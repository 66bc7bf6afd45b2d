"""Functions from record batches to record batches, as tasks.

A key that a segment does not have is null in the batch; a null in the result is a key with None.
Values of one key are of one type: where whole numbers meet fractions, all are fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from postroad.core.errors import MissingExtra

from .functions import Function, InvalidResultError
from .job import Segment

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowFunction:
    """Calls such a function with one segment, or with many."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def bind(self, **given: Any) -> ArrowFunction:
        """The same with further keyword arguments."""
        return ArrowFunction(partial(self._function, **given))

    def __call__(self, segment: Segment) -> Segment:
        return self._call([segment])[0]

    def call_batch(self, segments: Sequence[Segment]) -> tuple[list[Any], dict[int, Exception]]:
        """Call it with all at once.

        Returns:
            What it made of each, and what it raised, by position: if it raises, those that it
            raises for are found by halves.
        """
        results: list[Any] = [None] * len(segments)
        raised: dict[int, Exception] = {}
        left = [(0, len(segments))] if segments else []
        while left:
            start, stop = left.pop()
            try:
                results[start:stop] = self._call(segments[start:stop])
            except Exception as error:
                if stop - start == 1:
                    raised[start] = error
                else:
                    middle = (start + stop) // 2
                    left += [(start, middle), (middle, stop)]
        return results, raised

    def _call(self, segments: Sequence[Segment]) -> list[Segment]:
        made = self._function(to_record_batch(segments))
        rows = getattr(made, "num_rows", None)
        if rows != len(segments):
            found = f"{rows} rows" if rows is not None else type(made).__name__
            raise InvalidResultError(
                f"an arrow function returns a record batch with a row for each of"
                f" {len(segments)} rows, not {found}"
            )
        made_segments: list[Segment] = made.to_pylist()
        return made_segments


def to_record_batch(segments: Sequence[Segment]) -> pa.RecordBatch:
    """Segments as columns, with all keys that one of them has.

    Raises:
        pyarrow.ArrowInvalid: values of one key do not go together.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra("parquet", "tasks of kind arrow") from None
    names = dict.fromkeys(name for segment in segments for name in segment)
    columns = {name: [segment.get(name) for segment in segments] for name in names}
    return pa.RecordBatch.from_pydict(columns)
