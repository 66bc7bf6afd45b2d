// Traces: which way a request took, and where its time went.

import { copies } from "../act.js";
import { h } from "../dom.js";
import { milliseconds, time } from "../format.js";
import { menuButton } from "../menu.js";
import { badge, code, empty, heading, identity, panel, shown } from "../pieces.js";
import { link } from "../router.js";
import { numberColumn, tableOf } from "../table.js";

const SHOWN = 100;
const COLOURS = 6;

export default {
  path: "traces",
  title: "Traces",
  watches: (view) => {
    const [id] = view.route.args;
    return id === undefined ? [["trace.ls", { limit: SHOWN }]] : [["trace.show", { id }]];
  },
  draw: (view) => {
    const [id] = view.route.args;
    return id === undefined ? listPage(view) : tracePage(view, id);
  },
};

function listPage(view) {
  const params = { limit: SHOWN };
  const { state } = view;
  const hold = () => {
    state.held = state.held ? null : view.get("trace.ls", params);
    view.update();
  };
  return [
    heading(
      "Traces",
      h("span.space"),
      h(
        "button",
        { type: "button", "aria-pressed": String(Boolean(state.held)), onclick: hold },
        state.held ? "Go on" : "Hold the list",
      ),
    ),
    shown(view, "trace.ls", params, (newest) =>
      tableOf(view, {
        name: "traces",
        operation: "trace.ls",
        params,
        rows: state.held || newest,
        key: (row) => row.id,
        columns: [
          {
            label: "Id",
            value: (row) => row.id,
            show: (row) => identity(row.id, link("traces", [row.id])),
          },
          { label: "Root", value: (row) => row.root },
          { label: "Begun", value: (row) => row.started_at, show: (row) => time(row.started_at) },
          numberColumn("Took", (row) => row.elapsed_ms, milliseconds),
          numberColumn("Spans", (row) => row.spans),
          { label: "Nodes", value: (row) => [row.nodes].flat().join(" "), isWide: true },
          {
            label: "",
            value: (row) => (row.is_error ? "error" : ""),
            show: (row) => row.is_error && badge("error"),
          },
        ],
        empty: empty(
          "No traces yet.",
          "Calls, messages and flows are followed over all nodes while tracing is on.",
          "postroad node start --set tracing.enabled=true",
        ),
      }),
    ),
  ];
}

function tracePage(view, id) {
  return [
    heading(
      "Trace ",
      identity(id),
      h("a", { href: link("traces") }, "all traces"),
      h("span.space"),
      menuButton("Copy the trace as a command", () => copies("trace.show", { id }, view.node)),
    ),
    panel(
      "Waterfall",
      shown(view, "trace.show", { id }, (spans) => waterfall(view, spans)),
    ),
  ];
}

function waterfall(view, spans) {
  if (spans.length === 0) return empty("Nobody knows this trace any more.");
  const begun = Math.min(...spans.map((it) => it.started_at));
  const whole = Math.max(
    0.01,
    ...spans.map((it) => (it.started_at - begun) * 1000 + it.elapsed_ms),
  );
  const rows = inOrder(spans);
  const nodes = [...new Set(spans.map((it) => it.node))].sort();
  return [
    h(
      "ol.waterfall",
      { "aria-label": "Spans" },
      rows.map(({ it, depth }) =>
        spanRow(view, it, { depth, begun, whole, colour: nodes.indexOf(it.node) % COLOURS }),
      ),
    ),
    details(spans.find((it) => it.span_id === view.state.chosen)),
  ];
}

/** Every span under the one that caused it. */
function inOrder(spans) {
  const known = new Set(spans.map((it) => it.span_id));
  const below = new Map();
  for (const it of spans) {
    const parent = known.has(it.parent_id) ? it.parent_id : null;
    below.set(parent, [...(below.get(parent) || []), it]);
  }
  const rows = [];
  const seen = new Set();
  const visit = (parent, depth) => {
    const children = (below.get(parent) || []).sort(
      (one, other) => one.started_at - other.started_at,
    );
    for (const it of children) {
      if (seen.has(it.span_id)) continue;
      seen.add(it.span_id);
      rows.push({ it, depth });
      visit(it.span_id, depth + 1);
    }
  };
  visit(null, 0);
  return rows;
}

function spanRow(view, it, { depth, begun, whole, colour }) {
  const left = (((it.started_at - begun) * 1000) / whole) * 100;
  const width = Math.max(0.4, (it.elapsed_ms / whole) * 100);
  const isChosen = view.state.chosen === it.span_id;
  return h(
    "li",
    { key: it.span_id },
    h(
      "button",
      {
        type: "button",
        class: `span${isChosen ? " chosen" : ""}`,
        "aria-pressed": String(isChosen),
        onclick: () => {
          view.state.chosen = isChosen ? undefined : it.span_id;
          view.update();
        },
      },
      h(
        "span.name",
        { style: { "padding-left": `${Math.min(depth, 12) * 14}px` } },
        h("strong", null, it.name),
        h("span.muted", null, ` ${it.node}`),
      ),
      h(
        "span.track",
        { "aria-hidden": "true" },
        h("i", {
          class: it.error ? "failing" : `colour${colour}`,
          style: { left: `${Math.min(99.6, left)}%`, width: `${Math.min(100 - left, width)}%` },
        }),
      ),
      h("span.number", null, milliseconds(it.elapsed_ms)),
    ),
  );
}

function details(it) {
  if (it === undefined) return h("p.muted", null, "Choose a span to see what it carries.");
  return panel(it.name, code(it));
}
