// Pipelines: how fast jobs and their tasks are, what waits, what windows hold, what died, and how
// jobs are built.

import { actionButton } from "../act.js";
import { chart } from "../chart.js";
import { h } from "../dom.js";
import { count, plural, rate, span, time, until } from "../format.js";
import { seriesOf } from "../history.js";
import { graph } from "../map.js";
import { badge, empty, facts, folded, heading, identity, panel, shown, trouble } from "../pieces.js";
import { ROWS_SHOWN, hasTasks, taskTable, waitingTable, windowTable } from "../job_tables.js";
import { link } from "../router.js";
import { numberColumn, tableOf } from "../table.js";

export default {
  path: "pipelines",
  title: "Pipelines",
  watches: (view) => {
    const [job] = view.route.args;
    if (job === undefined) return [];
    return [
      ["job.show", { job }],
      ["job.explain", { job }],
      ["job.windows", { job, limit: ROWS_SHOWN }],
      ["job.waiting", { job, limit: ROWS_SHOWN }],
      ["job.dead-letters", { job, limit: ROWS_SHOWN }],
    ];
  },
  draw: (view) => {
    const [job] = view.route.args;
    return job === undefined ? listPage(view) : jobPage(view, job);
  },
};

function listPage(view) {
  return [
    heading("Pipelines"),
    shown(view, "job.ls", {}, (rows) =>
      tableOf(view, {
        name: "jobs",
        operation: "job.ls",
        rows,
        key: (row) => row.name,
        columns: [
          {
            label: "Job",
            value: (row) => row.name,
            show: (row) => h("a", { href: link("pipelines", [row.name]) }, row.name),
          },
          {
            label: "State",
            value: (row) => row.state,
            show: (row) => [badge(row.state), row.problem && h("p.wrong", null, row.problem)],
          },
          numberColumn("In", (row) => row.progress?.delivered_per_s, rate),
          numberColumn("Done", (row) => row.progress?.acked_per_s, rate),
          numberColumn("In work", (row) => row.pending, count, { isWide: true }),
          numberColumn("Waiting", (row) => row.waiting, count, { isWide: true }),
          numberColumn("Dead", (row) => row.dead),
          { label: "", value: () => "", show: (row) => runButton(view, row) },
        ],
        empty: empty(
          "No jobs are known here.",
          "Name their files in the configuration under pipeline.jobs, or submit one.",
          "postroad job submit job.toml",
        ),
      }),
    ),
  ];
}

function runButton(view, job) {
  if (job.state === "running") {
    return actionButton(view, {
      operation: "job.stop",
      place: "run",
      label: "Stop…",
      params: { job: job.name },
      title: `Stop ${job.name}?`,
      text: `${plural(job.pending ?? 0, "segment in work is", "segments in work are")} done again when it is started the next time.`,
      confirm: `Stop ${job.name}`,
    });
  }
  return actionButton(view, {
    operation: "job.submit",
    place: "run",
    params: { job: job.name },
    kind: "primary",
    says: (result) => `it is ${result.state}`,
  });
}

function jobPage(view, name) {
  return [
    heading(name, h("a", { href: link("pipelines") }, "all jobs")),
    shown(view, "job.show", { job: name }, (job) => [
      job.problem && trouble({ title: "It did not go well", message: job.problem }),
      panel(
        "Job",
        jobFacts(job),
        h("div.buttons", null, runButton(view, job), deadButtons(view, job)),
      ),
      job.progress && panel("Input and processing", rates(view, name)),
      hasTasks(job) && panel("Tasks", taskTable(view, name, job)),
    ]),
    panel("Graph", shown(view, "job.explain", { job: name }, jobGraph)),
    shown(view, "job.windows", { job: name, limit: ROWS_SHOWN }, (windows) =>
      windows.map((window) => panel(`Window ${window.name}`, windowTable(view, name, window))),
    ),
    panel(
      "Holding pen",
      shown(view, "job.waiting", { job: name, limit: ROWS_SHOWN }, (rows) =>
        waitingTable(view, name, rows),
      ),
    ),
    panel(
      "Dead segments",
      shown(view, "job.dead-letters", { job: name, limit: ROWS_SHOWN }, (rows) =>
        deadTable(view, name, rows),
      ),
    ),
  ];
}

function jobFacts(job) {
  const { progress, result } = job;
  return facts([
    ["State", badge(job.state)],
    ["File", job.path && h("code", null, job.path)],
    job.is_on_spark && ["Runs on", "Spark"],
    sparkLink(progress) && ["Spark UI", sparkLink(progress)],
    progress && ["Process", progress.pid],
    progress && ["Taken in", count(progress.delivered)],
    progress && ["Done", count(progress.acked)],
    progress && ["Batch", `${span(progress.batch_s)}, ${count(progress.batches)} so far`],
    progress && ["Failed", count(progress.failed)],
    progress && ["Retried", count(progress.replayed)],
    ["In work", count(job.pending)],
    progress && ["Not published yet", count(progress.unpublished)],
    ["In the pen", `${count(job.waiting)} to be retried`],
    ["Dead", count(job.dead)],
    ["Oldest", span(job.oldest_s)],
    progress && lateOf(progress) > 0 && ["Too late for their window", count(lateOf(progress))],
    result && ["Did", `${count(result.acked)} of ${count(result.delivered)} new segments`],
    progress && progress.restarts > 0 && ["Restarts of Spark", count(progress.restarts)],
    job.restarts > 0 && ["Restarts by the node", count(job.restarts)],
    job.next_start_at && ["Starts again", until(job.next_start_at)],
  ]);
}

/** Nothing but pages: what a node tells must not run here. */
function sparkLink(progress) {
  const url = progress?.spark_ui_url;
  if (!url || !/^https?:\/\//.test(url)) return null;
  return h("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, url);
}

function lateOf(progress) {
  return Object.values(progress.late || {}).reduce((sum, it) => sum + it, 0);
}

function rates(view, name) {
  const series = (field) => seriesOf(`job ${view.node || ""} ${name}`, field);
  return chart(
    [
      { label: "Input", kind: "first", points: series("delivered_per_s") },
      { label: "Processing", kind: "second", points: series("acked_per_s") },
    ],
    "/s",
  );
}

function deadButtons(view, job) {
  const params = { job: job.name };
  const none = job.dead > 0 ? "" : "There is none";
  return [
    actionButton(view, {
      operation: "job.retry",
      label: "Retry all dead",
      params,
      reason: none,
      says: (result) => `${plural(result.count, "segment")} put back`,
    }),
    actionButton(view, {
      operation: "job.drop",
      label: "Drop all dead…",
      params,
      reason: none,
      title: `Drop the dead segments of ${job.name}?`,
      text: `${plural(job.dead, "segment is", "segments are")} forgotten for good.`,
      confirm: `Drop ${plural(job.dead, "segment")}`,
      says: (result) => `${plural(result.count, "segment")} dropped`,
    }),
  ];
}

function deadTable(view, job, rows) {
  return tableOf(view, {
    name: "dead segments",
    operation: "job.dead-letters",
    params: { job, limit: ROWS_SHOWN },
    rows,
    key: (row) => row.id,
    columns: [
      { label: "Id", value: (row) => row.id, show: (row) => identity(row.id) },
      { label: "Input", value: (row) => row.task, isWide: true },
      { label: "Failed in", value: (row) => row.failed_task },
      { label: "Error", value: (row) => row.error, show: (row) => folded(row.error, 32) },
      {
        label: "Segment",
        value: (row) => row.segment,
        show: (row) => folded(row.segment, 24),
        isWide: true,
      },
      { label: "Attempts", value: (row) => row.attempts, isNumber: true, isWide: true },
      {
        label: "Died",
        value: (row) => diedAt(row),
        show: (row) => time(diedAt(row)),
        isWide: true,
      },
      { label: "", value: () => "", show: (row) => segmentButtons(view, job, row) },
    ],
    empty: empty(
      "No segment died.",
      "One that fails too often is kept here until it is retried or dropped.",
    ),
  });
}

function diedAt(row) {
  return row.died_ms / 1000;
}

function segmentButtons(view, job, row) {
  const params = { job, id: row.id };
  return h(
    "div.buttons",
    null,
    actionButton(view, {
      operation: "job.retry",
      params,
      says: (result) => `${plural(result.count, "segment")} put back`,
    }),
    actionButton(view, {
      operation: "job.drop",
      label: "Drop…",
      params,
      title: `Drop segment ${row.id}?`,
      text: "1 segment is forgotten for good.",
      confirm: "Drop 1 segment",
      says: (result) => `${plural(result.count, "segment")} dropped`,
    }),
  );
}

function jobGraph(result) {
  const { tasks, edges } = result;
  const depth = depths(tasks, edges);
  const boxes = tasks.map((it) => ({
    id: it.name,
    label: it.name,
    kind: it.type,
    status: "ok",
    column: depth.get(it.name) ?? 0,
    detail: [it.connector, it.function, it.description].filter(Boolean).join(", "),
  }));
  return [
    result.description && h("p", null, result.description),
    graph(
      boxes,
      edges.map((it) => ({ ...it, kind: "feeds" })),
      { label: "Tasks and what they feed" },
    ),
  ];
}

/** How far each task is from the inputs: the longest way counts. */
function depths(tasks, edges) {
  const depth = new Map(tasks.map((it) => [it.name, 0]));
  for (let round = 0; round < tasks.length; round += 1) {
    for (const { source, target } of edges) {
      depth.set(target, Math.max(depth.get(target) ?? 0, (depth.get(source) ?? 0) + 1));
    }
  }
  return depth;
}
