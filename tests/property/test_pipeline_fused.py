"""A job that runs many segments at a time comes to the same as one that runs root by root."""

from __future__ import annotations

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from postroad.pipeline import Job
from postroad.pipeline.validation import find_problems
from postroad.pipeline.vectorized import decoding as reading
from tests.property.pipeline_strategies import SOME, WRITING, Writing, alike, deliveries, jobs
from tests.support.pipeline.both_ways import RawInput, make_program, run_fused, run_one_by_one
from tests.support.pipeline.odd_functions import TABLE, decode_oddly


@SOME
@given(st.data(), jobs(), WRITING, st.sampled_from([1, 2, 3, 2048]))
def test_many_at_a_time_come_to_the_same_as_one_by_one(
    data: st.DataObject, job: Job, writing: Writing, piece_segments: int
) -> None:
    assert find_problems(job) == []
    program = make_program(job, TABLE)
    slices = data.draw(deliveries(list(program.graph.inputs)))
    connector = RawInput(decode_oddly)
    names = program.graph.outputs
    expected = run_one_by_one(program, slices, connector, {it: writing.open() for it in names})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "PIECE_SEGMENTS", piece_segments)
        found = run_fused(program, slices, connector, {it: writing.open() for it in names})
    event(f"failed: {bool(expected.failed)}, written: {any(expected.written.values())}")
    event(f"windows: {bool(job.windows)}, added: {len(expected.delta) > 3}")
    assert alike(found, program.windowed_tasks) == alike(expected, program.windowed_tasks)
