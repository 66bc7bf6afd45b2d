// Flows: where each is in its life, beginning new ones, and their schedules.

import { actionButton } from "../act.js";
import { h } from "../dom.js";
import { count, now, plural, span, time } from "../format.js";
import { badge, empty, folded, heading, identity, notice, shown, tabs } from "../pieces.js";
import { link, replaceQuery } from "../router.js";
import { numberColumn, tableOf } from "../table.js";
import { flowPage, flowWatches } from "./flow.js";

const SHOWN = 200;
const STATUSES = [
  "running",
  "queued",
  "held",
  "retrying",
  "parked",
  "paused",
  "done",
  "failed",
  "killed",
  "unreadable",
];
export const KIND_OF_STATUS = {
  running: "ok",
  done: "ok",
  queued: "quiet",
  held: "warning",
  retrying: "warning",
  paused: "warning",
  parked: "failing",
  unreadable: "failing",
  failed: "failing",
  killed: "warning",
};

export default {
  path: "flows",
  title: "Flows",
  mark: (view) => {
    const parked = view.overview?.flows?.parked || 0;
    return parked > 0
      ? { kind: "failing", text: count(parked), title: `${plural(parked, "flow")} parked` }
      : null;
  },
  watches: (view) => {
    const [id] = view.route.args;
    if (id !== undefined) return flowWatches(view, id);
    const tab = view.route.query.tab;
    const counts = ["flow.counts", {}];
    if (tab === "definitions") return [counts, ["flow.definitions", {}]];
    if (tab === "schedules") return [counts, ["flow.schedules", {}]];
    return [counts, ["flow.ls", filterOf(view)]];
  },
  draw: (view) => {
    const [id] = view.route.args;
    return id === undefined ? listPage(view) : flowPage(view, id);
  },
};

function filterOf(view) {
  const { status, name, before } = view.route.query;
  return {
    ...(status && { status }),
    ...(name && { name }),
    ...(before && { before }),
    limit: SHOWN,
  };
}

function listPage(view) {
  const tab = view.route.query.tab || "flows";
  const titles = { flows: "Flows", definitions: "Begin one", schedules: "Schedules" };
  const isDraining = view.get("flow.counts", {})?.is_draining;
  return [
    heading("Flows", drainButtons(view, isDraining)),
    isDraining &&
      notice(
        "warning",
        "No new flows are begun here.",
        "They were drained: those that run go on, new ones and schedules wait until they are undrained.",
      ),
    tabs(
      Object.entries(titles).map(([it, label]) => ({
        label,
        href: link("flows", [], it === "flows" ? {} : { tab: it }),
        isHere: it === tab,
      })),
    ),
    tab === "definitions" ? definitions(view) : tab === "schedules" ? schedules(view) : flows(view),
  ];
}

function drainButtons(view, isDraining) {
  return [
    h("span.space"),
    actionButton(view, {
      operation: "flow.drain",
      label: "Drain…",
      title: "Begin no new flows?",
      text: "Neither here nor for others, until they are undrained. Those that run go on.",
      schema: {
        type: "object",
        properties: { timeout_s: { type: "number", title: "Wait at most, seconds", default: 30 } },
      },
      initial: { timeout_s: 5 },
      confirm: "Drain",
      reason: isDraining ? "They are drained already." : "",
      says: (result) => `${plural(result.left, "flow")} still at work`,
    }),
    actionButton(view, {
      operation: "flow.undrain",
      kind: isDraining ? "primary" : "plain",
      reason: isDraining === false ? "New flows are begun as it is: nobody drained them." : "",
      says: () => "New flows are begun again",
    }),
  ];
}

function flows(view) {
  const params = filterOf(view);
  return [
    filters(view),
    shown(view, "flow.ls", params, (rows) => [
      tableOf(view, {
        name: "flows",
        operation: "flow.ls",
        params,
        rows,
        key: (row) => row.id,
        columns: columns(),
        empty: empty(
          params.status || params.name ? "No flow fits." : "No flow was begun yet.",
          "A flow is a function whose every step is kept, so that it goes on after any crash.",
          "postroad flow definitions",
        ),
      }),
      pager(params, rows),
    ]),
  ];
}

/** The way to older flows, and back. */
function pager({ limit, before, ...query }, rows) {
  const older = { ...query, before: rows.at(-1)?.id };
  return h(
    "p.pager",
    null,
    before && h("a", { href: link("flows", [], query) }, "Newest"),
    rows.length === limit && h("a", { href: link("flows", [], older) }, "Older"),
  );
}

function filters(view) {
  const { status = "", name = "" } = view.route.query;
  const counts = view.overview?.flows || {};
  return h(
    "div.filters",
    null,
    h(
      "label",
      null,
      "Status ",
      h(
        "select",
        {
          value: status,
          onchange: (event) => replaceQuery({ status: event.target.value, before: "" }),
        },
        h("option", { value: "" }, "any"),
        STATUSES.map((it) =>
          h("option", { key: it, value: it }, counts[it] ? `${it} (${count(counts[it])})` : it),
        ),
      ),
    ),
    h(
      "label",
      null,
      "Name ",
      h("input", {
        type: "text",
        value: name,
        placeholder: "exactly",
        onchange: (event) => replaceQuery({ name: event.target.value.trim(), before: "" }),
      }),
    ),
  );
}

function columns() {
  return [
    {
      label: "Id",
      value: (row) => row.id,
      show: (row) => identity(row.id, link("flows", [row.id])),
    },
    { label: "Flow", value: (row) => row.name },
    {
      label: "Status",
      value: (row) => row.status,
      show: (row) => badge(row.status, KIND_OF_STATUS[row.status]),
    },
    { label: "Begun", value: (row) => row.started_at, show: (row) => time(row.started_at) },
    numberColumn("Took", (row) => (row.ended_at || now()) - row.started_at, span, { isTime: true }),
    { label: "Begun as", value: (row) => row.client_id, isWide: true },
    {
      label: "Progress",
      value: (row) => row.error || row.progress,
      show: (row) => (row.error ? h("span.wrong", null, row.error) : row.progress),
      isWide: true,
    },
  ];
}

function definitions(view) {
  return shown(view, "flow.definitions", {}, (rows) =>
    tableOf(view, {
      name: "definitions",
      operation: "flow.definitions",
      rows,
      key: (row) => `${row.name} ${row.version}`,
      columns: [
        {
          label: "Flow",
          value: (row) => row.name,
          show: (row) => h("a", { href: link("flows", [], { name: row.name }) }, row.name),
        },
        { label: "Version", value: (row) => row.version, isNumber: true },
        { label: "Program", value: (row) => row.app, isWide: true },
        { label: "Description", value: (row) => row.description },
        { label: "Responds to", value: (row) => row.responds_to, isWide: true },
        {
          label: "At once",
          value: (row) => row.concurrency ?? "any",
          isNumber: true,
          isWide: true,
        },
        numberColumn("Time limit", (row) => row.timeout_s, span, { isWide: true }),
        { label: "Running", value: (row) => row.running, isNumber: true },
        { label: "", value: () => "", show: (row) => !row.responds_to && beginButton(view, row) },
      ],
      empty: empty(
        "This node has no flows.",
        "A function with @flow in its program is one.",
        "postroad new shop",
      ),
    }),
  );
}

function beginButton(view, definition) {
  const client = {
    type: "string",
    title: "Begin as",
    description: "with the same name, it is begun once only",
  };
  const form = definition.parameters || { title: "Arguments", description: "JSON object" };
  const isEmpty = definition.parameters && !Object.keys(form.properties || {}).length;
  return actionButton(view, {
    operation: "flow.begin",
    label: "Begin…",
    kind: "primary",
    params: { flow: definition.name },
    title: `Begin ${definition.name}`,
    text: definition.description,
    schema: {
      type: "object",
      properties: { ...(isEmpty ? {} : { arguments: form }), client_id: client },
      required: isEmpty ? [] : ["arguments"],
      $defs: form.$defs,
    },
    confirm: "Begin",
    says: (flow) => flow.id,
    done: (flow) => {
      location.hash = link("flows", [flow.id]);
    },
  });
}

function schedules(view) {
  return shown(view, "flow.schedules", {}, (rows) =>
    tableOf(view, {
      name: "schedules",
      operation: "flow.schedules",
      rows,
      key: (row) => row.name,
      columns: scheduleColumns(view),
      empty: empty(
        "No schedules.",
        "A program makes one: await node.flows.schedule(\"nightly\", \"30 2 * * *\", my_flow).",
        "postroad flow schedules",
      ),
    }),
  );
}

function scheduleColumns(view) {
  return [
    { label: "Name", value: (row) => row.name },
    {
      label: "Flow",
      value: (row) => row.flow,
      show: (row) => h("a", { href: link("flows", [], { name: row.flow }) }, row.flow),
    },
    {
      label: "When",
      value: (row) => row.cron,
      show: (row) => h("span.whole", null, h("code", null, row.cron), ` ${row.timezone}`),
    },
    {
      label: "Next",
      value: (row) => row.next_at,
      show: (row) => (row.is_paused ? badge("paused") : time(row.next_at)),
    },
    { label: "Last", value: (row) => row.last_at, show: lastOf, isWide: true },
    {
      label: "Missed",
      value: (row) => row.catch_up,
      show: (row) => h("span", { title: "what is done about times that were missed" }, row.catch_up),
      isWide: true,
    },
    {
      label: "Arguments",
      value: (row) => row.arguments,
      show: (row) => folded(row.arguments, 40),
      isWide: true,
    },
    {
      label: "Problem",
      value: (row) => row.problem,
      show: (row) => row.problem && h("span.wrong", null, row.problem),
    },
    { label: "", value: () => "", show: (row) => scheduleButtons(view, row) },
  ];
}

/** When it ran last, and the way to what it began then. */
function lastOf(row) {
  if (!row.last_client_id) return time(row.last_at);
  const found = link("search", [], { text: row.last_client_id });
  return h("a", { href: found, title: row.last_client_id }, time(row.last_at));
}

function scheduleButtons(view, schedule) {
  const params = { name: schedule.name };
  return h(
    "div.buttons",
    null,
    actionButton(view, {
      operation: schedule.is_paused ? "flow.resume-schedule" : "flow.pause-schedule",
      place: "pause",
      params,
    }),
    actionButton(view, {
      operation: "flow.run-schedule",
      params,
      says: (flow) => flow.id,
    }),
    actionButton(view, {
      operation: "flow.unschedule",
      label: "Remove…",
      params,
      title: `Remove the schedule ${schedule.name}?`,
      text: "1 schedule is forgotten; flows that it has begun go on.",
      confirm: "Remove 1 schedule",
    }),
  );
}
