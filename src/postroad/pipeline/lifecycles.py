"""What is done before and after the work of tasks, as their jobs say.

A lifecycle names a class with some of these methods:

- `before_task(**params)`: once, before anything else; what it returns are more keyword arguments
  for the task's function, such as a connection.
- `before_batch()` and `after_batch()`: around each batch.
- `after_task()`: once, at the end, also after a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from postroad.core.errors import ConfigError

from .job import ALL, Job

HOOKS = ("before_task", "before_batch", "after_batch", "after_task")


class LifecycleHooks:
    """The lifecycles of a job, in order."""

    def __init__(self, job: Job, find: Callable[[str], Any]) -> None:
        self._calls: list[tuple[list[str], dict[str, Any], dict[str, Callable[..., Any]]]] = []
        names = [task.name for task in job.catalog]
        for it in job.lifecycles:
            tasks = names if it.task == ALL else [it.task]
            self._calls.append((tasks, it.params, _hooks_of(it.calls, find(it.calls))))

    def start(self) -> dict[str, dict[str, Any]]:
        """Begin; returns keyword arguments for the function of each task."""
        given: dict[str, dict[str, Any]] = {}
        for tasks, params, hooks in self._calls:
            if (before := hooks.get("before_task")) is None:
                continue
            for task in tasks:
                given.setdefault(task, {}).update(before(**params) or {})
        return given

    def before_batch(self) -> None:
        """A batch begins."""
        self._call("before_batch")

    def after_batch(self) -> None:
        """A batch is settled."""
        self._call("after_batch")

    def stop(self) -> None:
        """All is over."""
        self._call("after_task")

    def _call(self, name: str) -> None:
        for tasks, _, hooks in self._calls:
            if name in hooks:
                for _ in tasks:
                    hooks[name]()


def _hooks_of(path: str, make: Callable[[], object]) -> dict[str, Callable[..., Any]]:
    holder = make()
    hooks = {name: hook for name in HOOKS if (hook := getattr(holder, name, None)) is not None}
    if not hooks:
        raise ConfigError(f"{path!r} has none of the hooks {', '.join(HOOKS)}")
    return hooks
