"""The functions of the job that the browser looks at."""

import time

from postroad.pipeline import Segment


def add(segment: Segment) -> Segment:
    """Add two numbers, slowly, so that there is something to see."""
    time.sleep(0.004)
    return {**segment, "sum": segment["a"] + segment["b"]}
