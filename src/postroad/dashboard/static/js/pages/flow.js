// One flow: its steps in time, with every value, and help for it.

import { actionButton, copies } from "../act.js";
import { call } from "../api.js";
import { h } from "../dom.js";
import { count, now, span, time, until } from "../format.js";
import { menuButton } from "../menu.js";
import {
  badge,
  code,
  empty,
  facts,
  folded,
  heading,
  identity,
  panel,
  shown,
  trouble,
} from "../pieces.js";
import { link } from "../router.js";
import { KIND_OF_STATUS } from "./flows.js";

const ENDED = ["done", "failed", "killed"];
const SIGNAL_SCHEMA = {
  type: "object",
  properties: {
    name: { type: "string", title: "Signal" },
    value: { title: "Value", orText: true },
  },
  required: ["name"],
};

export function flowWatches(_view, id) {
  return [
    ["flow.show", { id }],
    ["flow.history", { id }],
  ];
}

export function flowPage(view, id) {
  return [
    heading("Flow ", identity(id), h("a", { href: link("flows") }, "all flows")),
    shown(view, "flow.show", { id }, (flow) => [
      panel(flow.name, flowFacts(flow), h("div.buttons", null, buttons(view, flow))),
      flow.error && panel("Error", errorOf(flow)),
      // A node of an older version tells none.
      Object.keys(flow.arguments ?? {}).length > 0 && panel("Arguments", code(flow.arguments)),
      flow.status === "done" && panel("Result", code(flow.result)),
      ENDED.includes(flow.status) ? null : queryPanel(view, flow),
      panel(
        "Steps",
        shown(view, "flow.history", { id }, (steps) => timeline(view, flow, steps)),
      ),
    ]),
  ];
}

function flowFacts(flow) {
  const end = flow.ended_at || now();
  return facts([
    ["Status", badge(flow.status, KIND_OF_STATUS[flow.status])],
    ["Version", `${flow.version}${flow.run > 1 ? `, run ${flow.run}` : ""}`],
    ["Begun", time(flow.started_at)],
    [flow.ended_at ? "Took" : "Since", span(end - flow.started_at)],
    flow.client_id && ["Begun as", identity(flow.client_id)],
    flow.peer && ["Responds to", flow.peer],
    flow.parent && ["Child of", identity(flow.parent, link("flows", [flow.parent]))],
    flow.forked_from && ["Forked from", forkOf(flow)],
    flow.progress && [flow.ended_at ? "Last progress" : "Progress", flow.progress],
    Object.keys(flow.attributes ?? {}).length > 0 && ["Attributes", attributesOf(flow)],
    flow.waits_for.length > 0 && ["Waits for", flow.waits_for.join(", ")],
    flow.wakes_at && ["Wakes", `${time(flow.wakes_at)}, ${until(flow.wakes_at)}`],
    flow.attempts > 0 && ["Attempts", count(flow.attempts)],
  ]);
}

function attributesOf(flow) {
  const pairs = Object.entries(flow.attributes).map(([name, value]) => `${name}=${value}`);
  return pairs.join(", ");
}

function forkOf(flow) {
  const origin = identity(flow.forked_from, link("flows", [flow.forked_from]));
  return [origin, ` at step #${flow.forked_step}`];
}

function errorOf(flow) {
  return [
    h("p.wrong", null, h("strong", null, flow.error)),
    flow.detail && code(flow.detail),
    flow.error_id && h("p.muted", null, "Error ", identity(flow.error_id)),
  ];
}

function buttons(view, flow) {
  const params = { id: flow.id };
  const over = ENDED.includes(flow.status) ? `It is ${flow.status}` : "";
  const canRetry = ["parked", "retrying"].includes(flow.status);
  return [
    actionButton(view, {
      operation: "flow.retry",
      kind: canRetry ? "primary" : "plain",
      params,
      reason: canRetry
        ? ""
        : `It is ${flow.status}: only what is parked or retrying is tried again`,
      says: (result) => `it is ${result.status}`,
    }),
    actionButton(view, {
      operation: flow.status === "paused" ? "flow.resume" : "flow.pause",
      place: "pause",
      params,
      reason: over,
      says: (result) => `it is ${result.status}`,
    }),
    actionButton(view, {
      operation: "flow.signal",
      label: "Signal…",
      params,
      reason: over,
      title: "Send a signal",
      schema: SIGNAL_SCHEMA,
      confirm: "Send",
    }),
    actionButton(view, {
      operation: "flow.cancel",
      label: "Cancel…",
      params,
      reason: over,
      title: "Cancel this flow",
      schema: { type: "object", properties: { reason: { type: "string", title: "Reason" } } },
      confirm: "Cancel 1 flow",
      says: (result) => `it is ${result.status}`,
    }),
    actionButton(view, {
      operation: "flow.kill",
      label: "Kill…",
      params,
      reason: over,
      title: "Kill this flow?",
      text: "1 flow ends as killed; everybody it talks to is told that it has failed.",
      schema: { type: "object", properties: { reason: { type: "string", title: "Reason" } } },
      confirm: "Kill 1 flow",
      says: (result) => `it is ${result.status}`,
    }),
  ];
}

function queryPanel(view, flow) {
  const { state } = view;
  const submit = async (event) => {
    event.preventDefault();
    const name = new FormData(event.target).get("name").trim();
    try {
      state.answer = await call("flow.query", { id: flow.id, name }, { node: view.node });
      state.refusal = null;
    } catch (error) {
      state.refusal = error;
    }
    view.update();
  };
  return h(
    "details.panel",
    null,
    h("summary", null, "Ask its code"),
    h(
      "form.inline",
      { onsubmit: submit },
      h("label", { for: "query-name" }, "Query"),
      h("input", { id: "query-name", name: "name", required: true, autocomplete: "off" }),
      h(
        "span.split",
        null,
        h("button", { type: "submit", "data-operation": "flow.query" }, "Ask"),
        menuButton("Copy the query as a command", () => {
          const name = document.getElementById("query-name").value.trim();
          return copies("flow.query", { id: flow.id, name }, view.node);
        }),
      ),
    ),
    state.refusal ? trouble(state.refusal) : state.answer && code(state.answer.value),
  );
}

function timeline(view, flow, steps) {
  if (steps.length === 0) {
    return empty("No step is done yet.", "Each is shown here as soon as it is kept.");
  }
  const begun = flow.started_at;
  const whole = Math.max(0.001, ...steps.map((it) => it.at - begun));
  return h(
    "ol.timeline",
    { "aria-label": "Steps" },
    steps.map((step, index) =>
      stepItem(view, flow, step, { begun, whole, before: steps[index - 1] }),
    ),
  );
}

function stepItem(view, flow, step, { begun, whole, before }) {
  const after = step.at - (before?.at ?? begun);
  return h(
    "li.step",
    { key: step.number, class: step.error ? "failing" : "ok" },
    h("span.when.number", { title: time(step.at) }, `+${span(Math.max(0, step.at - begun))}`),
    h(
      "div.what",
      null,
      h(
        "div.title",
        null,
        h("span.kind", null, step.kind),
        h("strong", null, step.name),
        h("span.muted", null, ` #${step.number}`),
        h("span.muted", null, ` ${span(Math.max(0, after))}`),
      ),
      h(
        "div.track",
        { "aria-hidden": "true" },
        h("i", { style: trackStyle(step, after, begun, whole) }),
      ),
      step.error ? h("p.wrong", null, step.error) : step.value !== null && folded(step.value, 120),
    ),
    actionButton(view, {
      operation: "flow.fork",
      params: { id: flow.id, step: step.number },
      says: (result) => result.id,
      done: (result) => {
        location.hash = link("flows", [result.id]);
      },
    }),
  );
}

function trackStyle(step, after, begun, whole) {
  const end = ((step.at - begun) / whole) * 100;
  const wide = Math.max(0.6, (after / whole) * 100);
  return { left: `${Math.max(0, Math.min(99.4, end - wide))}%`, width: `${Math.min(100, wide)}%` };
}
