"""A job that clears payments, as the files a person would write."""

from __future__ import annotations

import json
from pathlib import Path

JOB = """
name = "clearing"
workflow = [["in", "parse"], ["parse", "out"]]

[[catalog]]
name = "in"
type = "input"
connector = "jsonl"
options = { path = "payments/*.jsonl" }
retry = { attempts = 2, first_s = 0.001 }

[[catalog]]
name = "parse"
type = "function"
fn = "clearing_functions:parse"

[[catalog]]
name = "out"
type = "output"
connector = "jsonl"
options = { path = "cleared" }
"""
SLOW = """
import time

def parse(segment):
    time.sleep(0.01)
    return {"amount": int(segment["amount"])}
"""


def cleared() -> list[int]:
    lines = "".join(path.read_text() for path in Path("cleared").glob("*.jsonl"))
    return sorted(json.loads(line)["amount"] for line in lines.splitlines())
