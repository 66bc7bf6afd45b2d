"""A job with something of everything, and the words for what is wrong with others."""

from collections.abc import Mapping
from typing import Any

from postroad.pipeline.job import Job
from postroad.pipeline.validation import find_problems

Data = dict[str, Any]

# Places in the catalog of the job.
IN, PARSE, TOTAL, OUT, ERRORS = range(5)


def clearing_data() -> Data:
    """The data of a valid job, new at every call, for tests that break it."""
    return {
        "name": "clearing",
        "doc": "Totals of payments.",
        "workflow": [
            ["in", "parse"],
            ["parse", "total"],
            ["parse", "errors"],
            ["total", "out"],
        ],
        "catalog": [
            {"name": "in", "type": "input", "connector": "memory", "batch_size": 100},
            {"name": "parse", "type": "function", "fn": "bank.parsing:parse"},
            {
                "name": "total",
                "type": "function",
                "fn": "bank.sums:total",
                "params": {"currency": "EUR"},
                "group_by": ["account", "currency"],
            },
            {"name": "out", "type": "output", "connector": "mail", "options": {"queue": "totals"}},
            {"name": "errors", "type": "output", "connector": "memory"},
        ],
        "flow_conditions": [
            {
                "from": "parse",
                "to": "none",
                "predicate": "bank.rules:is_noise",
                "short_circuit": True,
            },
            {
                "from": "parse",
                "to": ["total"],
                "predicate": {"and": ["bank.rules:is_big", {"not": "bank.rules:is_old"}]},
                "exclude_keys": ["secret"],
            },
            {
                "from": "parse",
                "to": "errors",
                "exceptions": True,
                "short_circuit": True,
                "post_transform": "bank.rules:describe",
            },
        ],
        "windows": [
            {
                "name": "daily",
                "task": "total",
                "type": "fixed",
                "aggregation": "sum",
                "key": "amount",
                "time_key": "at",
                "range_s": 86_400.0,
            }
        ],
        "triggers": [{"window": "daily", "on": "segments", "threshold": 10.0}],
        "lifecycles": [{"task": "all", "hooks": "bank.hooks:Log", "params": {"level": 3}}],
        "metadata": {"owner": "clearing team"},
    }


def broken(section: str, place: int, **keys: Any) -> Data:
    """The valid job with other keys in one entry; None takes a key away."""
    data = clearing_data()
    entry = data[section][place]
    entry.update({key.rstrip("_"): value for key, value in keys.items()})
    for key in [key for key, value in entry.items() if value is None]:
        del entry[key]
    return data


def complaints(job: Job | Mapping[str, Any]) -> list[str]:
    """What is wrong with a job, each with its place."""
    return [str(problem) for problem in find_problems(job)]
