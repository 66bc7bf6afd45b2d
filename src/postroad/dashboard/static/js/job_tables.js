// Tables of one job: its tasks, its windows, its holding pen.

import { count, milliseconds, rate, time } from "./format.js";
import { h } from "./dom.js";
import { empty, folded, identity } from "./pieces.js";
import { numberColumn, tableOf } from "./table.js";

export const ROWS_SHOWN = 100;

/** What each task does, or did until the job had finished; nothing if nobody counts that. */
function tasksOf(job) {
  const tasks = job.progress?.tasks ?? job.result?.tasks ?? {};
  return Object.entries(tasks).map(([task, it]) => ({
    task,
    latency_s: it.processed > 0 ? it.seconds / it.processed : 0,
    ...it,
  }));
}

export function hasTasks(job) {
  return tasksOf(job).length > 0;
}

export function taskTable(view, name, job) {
  return tableOf(view, {
    name: "tasks",
    operation: "job.show",
    params: { job: name },
    rows: tasksOf(job),
    key: (row) => row.task,
    columns: [
      { label: "Task", value: (row) => row.task },
      numberColumn("Rate", (row) => row.per_s, rate),
      {
        label: "Latency",
        value: (row) => row.latency_s,
        show: (row) => milliseconds(row.latency_s * 1000),
        isNumber: true,
      },
      numberColumn("Processed", (row) => row.processed, count, { isWide: true }),
      numberColumn("Failed", (row) => row.failed),
    ],
  });
}

export function windowTable(view, job, window) {
  const bounds = (row) => [row.lower, row.upper].map((it) => it ?? "").join(" – ");
  return [
    h(
      "p",
      null,
      `${window.type}, ${window.aggregation}, of task ${window.task}; ${count(window.late)} too late`,
    ),
    tableOf(view, {
      name: `window ${window.name}`,
      operation: "job.windows",
      params: { job, limit: ROWS_SHOWN },
      rows: window.extents,
      key: (row) => `${JSON.stringify(row.group)} ${row.lower}`,
      columns: [
        {
          label: "Group",
          value: (row) => JSON.stringify(row.group),
          show: (row) => folded(row.group, 32),
        },
        { label: "Seconds", value: bounds, isWide: true },
        {
          label: "Value",
          value: (row) => JSON.stringify(row.value),
          show: (row) => folded(row.value, 32),
        },
        numberColumn("Segments", (row) => row.segments),
      ],
      empty: empty("The window holds nothing.", "What it held was emitted, or nothing came yet."),
    }),
  ];
}

export function waitingTable(view, job, rows) {
  return tableOf(view, {
    name: "waiting segments",
    operation: "job.waiting",
    params: { job, limit: ROWS_SHOWN },
    rows,
    key: (row) => row.id,
    columns: [
      { label: "Id", value: (row) => row.id, show: (row) => identity(row.id) },
      { label: "Input", value: (row) => row.task, isWide: true },
      { label: "Failed in", value: (row) => row.failed_task },
      { label: "Error", value: (row) => row.error, show: (row) => folded(row.error, 32) },
      { label: "Attempts", value: (row) => row.attempts, isNumber: true, isWide: true },
      {
        label: "Comes again",
        value: (row) => row.due_ms,
        show: (row) => time(row.due_ms / 1000),
      },
    ],
    empty: empty("No segment waits.", "One that fails waits here until its next attempt."),
  });
}
