// Pipelines: how fast jobs take in and get done, what waits, what died, and how they are built.

import { actionButton } from "../act.js";
import { chart } from "../chart.js";
import { h } from "../dom.js";
import { count, plural, rate, span, time } from "../format.js";
import { seriesOf } from "../history.js";
import { graph } from "../map.js";
import { badge, empty, facts, folded, heading, identity, panel, shown, trouble } from "../pieces.js";
import { link } from "../router.js";
import { tableOf } from "../table.js";

const DEAD_SHOWN = 100;

export default {
  path: "pipelines",
  title: "Pipelines",
  watches: (view) => {
    const [job] = view.route.args;
    if (job === undefined) return [];
    return [
      ["pipeline.show", { job }],
      ["pipeline.graph", { job }],
      ["pipeline.dead", { job, limit: DEAD_SHOWN }],
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
    shown(view, "pipeline.ls", {}, (rows) =>
      tableOf(view, {
        name: "jobs",
        operation: "pipeline.ls",
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
          {
            label: "In",
            value: (row) => row.progress?.delivered_per_s,
            show: (row) => rate(row.progress?.delivered_per_s),
            isNumber: true,
          },
          {
            label: "Done",
            value: (row) => row.progress?.acked_per_s,
            show: (row) => rate(row.progress?.acked_per_s),
            isNumber: true,
          },
          {
            label: "In work",
            value: (row) => row.pending,
            show: (row) => count(row.pending),
            isNumber: true,
            isWide: true,
          },
          {
            label: "Waiting",
            value: (row) => row.waiting,
            show: (row) => count(row.waiting),
            isNumber: true,
            isWide: true,
          },
          {
            label: "Dead",
            value: (row) => row.dead,
            show: (row) => count(row.dead),
            isNumber: true,
          },
          { label: "", value: () => "", show: (row) => runButton(view, row) },
        ],
        empty: empty(
          "No jobs are known here.",
          "Name their files in the configuration under pipeline.jobs, or start one.",
          "postroad pipeline submit job.toml",
        ),
      }),
    ),
  ];
}

function runButton(view, job) {
  if (job.state === "running") {
    return actionButton(view, {
      operation: "pipeline.stop",
      place: "run",
      label: "Stop…",
      params: { job: job.name },
      commandParams: { job: job.path },
      title: `Stop ${job.name}?`,
      text: `${plural(job.pending ?? 0, "segment in work is", "segments in work are")} done again when it is started the next time.`,
      confirm: `Stop ${job.name}`,
    });
  }
  return actionButton(view, {
    operation: "pipeline.submit",
    place: "run",
    params: { job: job.name },
    commandParams: { job: job.path },
    kind: "primary",
    says: (result) => `it is ${result.state}`,
  });
}

function jobPage(view, name) {
  return [
    heading(name, h("a", { href: link("pipelines") }, "all jobs")),
    shown(view, "pipeline.show", { job: name }, (job) => [
      job.problem && trouble({ title: "It did not go well", message: job.problem }),
      panel(
        "Job",
        jobFacts(job),
        h("div.buttons", null, runButton(view, job), deadButtons(view, job)),
      ),
      job.progress && panel("Input and processing", rates(view, name)),
    ]),
    panel("Graph", shown(view, "pipeline.graph", { job: name }, jobGraph)),
    panel(
      "Dead segments",
      shown(view, "pipeline.dead", { job: name, limit: DEAD_SHOWN }, (rows) =>
        deadTable(view, name, rows),
      ),
    ),
  ];
}

function jobFacts(job) {
  const { progress } = job;
  return facts([
    ["State", badge(job.state)],
    ["File", job.path && h("code", null, job.path)],
    progress && ["Process", progress.pid],
    progress && ["Taken in", count(progress.delivered)],
    progress && ["Done", count(progress.acked)],
    progress && ["Batch", `${span(progress.batch_s)}, ${count(progress.batches)} so far`],
    progress && ["Failed", count(progress.failed)],
    progress && ["Replayed", count(progress.replayed)],
    ["In work", count(job.pending)],
    progress && ["Not published yet", count(progress.unpublished)],
    ["In the pen", `${count(job.waiting)} to be replayed`],
    ["Dead", count(job.dead)],
    ["Oldest", span(job.oldest_s)],
    progress && progress.restarts > 0 && ["Restarts", count(progress.restarts)],
  ]);
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
  const commandParams = { job: job.path };
  const none = job.dead > 0 ? "" : "There is none";
  return [
    actionButton(view, {
      operation: "pipeline.replay",
      label: "Replay all dead",
      params,
      commandParams,
      reason: none,
      says: (result) => `${plural(result.count, "segment")} put back`,
    }),
    actionButton(view, {
      operation: "pipeline.drop",
      label: "Drop all dead…",
      params,
      commandParams,
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
    operation: "pipeline.dead",
    params: { job, limit: DEAD_SHOWN },
    commandParams: { job: view.get("pipeline.show", { job })?.path, limit: DEAD_SHOWN },
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
      "One that fails too often is kept here until it is replayed or dropped.",
    ),
  });
}

function diedAt(row) {
  return row.died_ms / 1000;
}

function segmentButtons(view, job, row) {
  const params = { job, id: row.id };
  const path = view.get("pipeline.show", { job })?.path;
  const commandParams = { job: path, id: row.id };
  return h(
    "div.buttons",
    null,
    actionButton(view, {
      operation: "pipeline.replay",
      params,
      commandParams,
      says: (result) => `${plural(result.count, "segment")} put back`,
    }),
    actionButton(view, {
      operation: "pipeline.drop",
      label: "Drop…",
      params,
      commandParams,
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
