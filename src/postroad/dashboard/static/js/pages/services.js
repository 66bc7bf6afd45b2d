// Services: who offers which actions, calls from a form, and events.

import { actionButton, copies, READ_ONLY } from "../act.js";
import { call } from "../api.js";
import { h } from "../dom.js";
import { Form, formFields } from "../form.js";
import { count, milliseconds } from "../format.js";
import { menuButton } from "../menu.js";
import { badge, code, empty, heading, notice, panel, shown, trouble } from "../pieces.js";
import { link } from "../router.js";
import { mayChange } from "../session.js";
import { tableOf } from "../table.js";
import { tellReason } from "../toast.js";

export default {
  path: "services",
  title: "Services",
  watches: () => [
    ["service.ls", {}],
    ["service.actions", {}],
    ["service.events", {}],
  ],
  draw: (view) => {
    const [name] = view.route.args;
    return name === undefined ? listPage(view) : actionPage(view, name);
  },
};

function listPage(view) {
  return [
    heading("Services", emitButton(view)),
    panel(
      "Services",
      shown(view, "service.ls", {}, (rows) => services(view, rows)),
    ),
    panel(
      "Actions",
      shown(view, "service.actions", {}, (rows) => actions(view, rows)),
    ),
    panel(
      "Events",
      shown(view, "service.events", {}, (rows) => events(view, rows)),
    ),
  ];
}

function emitButton(view, event) {
  return actionButton(view, {
    operation: "service.emit",
    label: event ? "Emit" : "Emit an event",
    params: event ? { event } : {},
    title: event ? `Emit ${event}` : "Emit an event",
    schema: {
      type: "object",
      properties: {
        ...(event ? {} : { event: { type: "string", title: "Event" } }),
        data: { title: "Data", orText: true },
        durable: {
          type: "boolean",
          title: "Durable",
          description: "kept until every group has it",
        },
        broadcast: { type: "boolean", title: "To every node", description: "not to one per group" },
      },
      required: event ? [] : ["event"],
    },
    confirm: "Emit",
    says: (result) =>
      result.groups.length > 0 ? `to ${result.groups.join(", ")}` : "nobody listens to it",
  });
}

function services(view, rows) {
  return tableOf(view, {
    name: "services",
    operation: "service.ls",
    rows,
    key: (row) => `${row.name} ${row.version}`,
    columns: [
      { label: "Name", value: (row) => row.name, show: (row) => h("strong", null, row.name) },
      { label: "Version", value: (row) => row.version },
      { label: "Nodes", value: (row) => row.nodes.join(" ") },
      { label: "Actions", value: (row) => amount(row.actions), isNumber: true },
      { label: "Events", value: (row) => amount(row.events), isNumber: true },
    ],
    empty: empty(
      "No services.",
      "Write a class that derives from postroad.services.Service, and run it.",
      "postroad dev app.py",
    ),
  });
}

function amount(value) {
  return Array.isArray(value) ? value.length : value;
}

function actions(view, rows) {
  return tableOf(view, {
    name: "actions",
    operation: "service.actions",
    rows,
    key: (row) => row.name,
    columns: [
      {
        label: "Action",
        value: (row) => row.name,
        show: (row) => h("a", { href: link("services", [row.name]) }, row.name),
      },
      { label: "Nodes", value: (row) => row.nodes.join(" "), show: nodesOf, isWide: true },
      { label: "Description", value: (row) => row.description },
      {
        label: "",
        value: () => "",
        show: (row) => h("a.button", { href: link("services", [row.name]) }, "Call…"),
      },
    ],
    empty: empty("No actions.", "A method of a service with @action is one."),
  });
}

/** Who has an action, and how many of them do not answer at the moment. */
function nodesOf(row) {
  const missing = row.nodes.length - row.available;
  return [
    row.nodes.join(", "),
    missing > 0 && [" ", badge(`${missing} not available`, row.available ? "warning" : "failing")],
  ];
}

function events(view, rows) {
  return tableOf(view, {
    name: "events",
    operation: "service.events",
    rows,
    key: (row) => row.name,
    columns: [
      { label: "Event", value: (row) => row.name },
      { label: "Groups", value: (row) => row.groups.join(" ") },
      { label: "Nodes", value: (row) => row.nodes.join(" ") },
      { label: "", value: () => "", show: (row) => emitButton(view, row.name) },
    ],
    empty: empty("Nobody listens to an event.", "A method of a service with @event does."),
  });
}

function actionPage(view, name) {
  return [
    heading(name, h("a", { href: link("services") }, "all services")),
    shown(view, "service.actions", {}, (rows) => {
      const found = rows.find((it) => it.name === name);
      if (found !== undefined) return callPanel(view, found);
      const ofService = rows.filter((it) => it.service === name || it.name.startsWith(`${name}.`));
      if (ofService.length > 0) return panel("Actions", actions(view, ofService));
      return empty(
        `There is no action “${name}” now.`,
        "Its node may be away.",
        "postroad service actions",
      );
    }),
  ];
}

function callPanel(view, action) {
  const { state } = view;
  state.form ??= new Form(action.schema);
  state.form.jsonLabel = "Parameters (JSON)";
  state.nodeId ??= "";
  const params = () => ({
    action: action.name,
    params: state.form.read() ?? undefined,
    node_id: state.nodeId || undefined,
  });
  const reason = mayChange() ? (state.isCalling ? "It is being called." : "") : READ_ONLY;
  const submit = (event) => {
    event.preventDefault();
    if (reason) tellReason(reason);
    else makeCall(view, params);
  };
  return h(
    "div.columns",
    null,
    panel(
      "Call",
      action.description && h("p", null, action.description),
      h("p.muted", null, "At ", nodesOf(action), action.is_cached && "; its answers may be cached"),
      h(
        "form",
        { onsubmit: submit },
        formFields(state.form, view.update),
        nodeChoice(view, action),
        h(
          "div.buttons",
          null,
          h(
            "button.primary",
            {
              type: "submit",
              "data-operation": "service.call",
              "aria-disabled": reason ? "true" : null,
              title: reason || null,
            },
            state.isCalling ? "Calling…" : "Call",
          ),
          menuButton("Copy the call as a command", () =>
            copies("service.call", params(), view.node),
          ),
        ),
      ),
    ),
    panel("Result", result(state)),
  );
}

function nodeChoice(view, action) {
  if (action.nodes.length < 2) return null;
  return h(
    "div.field",
    null,
    h("label", { for: "call-node" }, "Node"),
    h(
      "select",
      {
        id: "call-node",
        value: view.state.nodeId,
        onchange: (event) => {
          view.state.nodeId = event.target.value;
        },
      },
      h("option", { value: "" }, "any"),
      action.nodes.map((it) => h("option", { key: it, value: it }, it)),
    ),
  );
}

async function makeCall(view, params) {
  const { state } = view;
  const said = params();
  view.update();
  if (Object.keys(state.form.wrong).length > 0) return;
  state.isCalling = true;
  try {
    state.answer = await call("service.call", said, { node: view.node });
    state.failure = null;
  } catch (error) {
    state.failure = error;
  }
  state.isCalling = false;
  view.update();
}

function result(state) {
  if (state.failure) return trouble(state.failure);
  if (!state.answer) return h("p.muted", null, "What the action answers is shown here.");
  const { answer } = state;
  return [
    h(
      "p",
      { role: "status" },
      h("b", null, milliseconds(answer.elapsed_ms)),
      answer.node_id && h("span.muted", null, ` by ${answer.node_id}`),
    ),
    answer.warnings.map((it) => notice("warning", "Take note", it)),
    answer.is_cut && notice("warning", "This is not all", "The answer is longer than is shown."),
    code(JSON.stringify(answer.result)),
    h("p.muted", null, `${count(JSON.stringify(answer.result ?? null).length)} characters of JSON`),
  ];
}
