// Queues of durable messages: how much waits, a look inside, and what can be done about it.

import { actionButton } from "../act.js";
import { asCommand } from "../commands.js";
import { h } from "../dom.js";
import { count, plural, span } from "../format.js";
import { badge, empty, facts, heading, panel, shown } from "../pieces.js";
import { link } from "../router.js";
import { numberColumn, tableOf } from "../table.js";
import { letterTable } from "./letters.js";

const PEEKED = 50;
const POST_SCHEMA = {
  type: "object",
  properties: {
    body: { title: "Body", orText: true },
    key: { type: "string", title: "Key", description: "messages of one key stay in order" },
    headers: { title: "Headers", description: 'JSON: {"name": "value"}' },
    peer: { type: "string", title: "Node", description: "this node if empty" },
  },
  required: ["body"],
};

export default {
  path: "queues",
  title: "Queues",
  watches: (view) => {
    const [name] = view.route.args;
    if (name === undefined) return [["queue.ls", {}]];
    return [
      ["queue.show", { queue: name }],
      ["queue.peek", peekParams(view, name)],
      ["queue.schema", { queue: name }],
    ];
  },
  draw: (view) => {
    const [name] = view.route.args;
    return name === undefined ? listPage(view) : queuePage(view, name);
  },
};

function peekParams(view, queue) {
  const { id } = view.route.query;
  return id ? { queue, id } : { queue, limit: PEEKED };
}

function listPage(view) {
  return [
    heading("Queues", postButton(view)),
    shown(view, "queue.ls", {}, (rows) =>
      tableOf(view, {
        name: "queues",
        operation: "queue.ls",
        rows,
        key: (row) => row.name,
        columns: columns(view),
        empty: empty(
          "No queue has had a message.",
          "A queue is there as soon as something consumes it or a message is posted to it.",
          `postroad queue post orders '{"item": "tea"}'`,
        ),
      }),
    ),
  ];
}

function columns(view) {
  return [
    {
      label: "Queue",
      value: (row) => row.name,
      show: (row) => h("a", { href: link("queues", [row.name]) }, row.name),
    },
    { label: "State", value: stateOf, show: (row) => badge(stateOf(row), stateKind(row)) },
    numberColumn("Waiting", (row) => row.depth),
    { label: "In flight", value: (row) => row.in_flight, isNumber: true, isWide: true },
    numberColumn("Oldest", (row) => row.oldest_age_s, span, { isTime: true }),
    numberColumn("Handled", (row) => row.handled, count, { isWide: true }),
    numberColumn("Failed", (row) => row.failed, count, { isWide: true }),
    { label: "", value: () => "", show: (row) => pauseButton(view, row) },
  ];
}

function stateOf(row) {
  if (row.is_paused) return "paused";
  return row.has_consumer ? "consumed" : "no consumer";
}

function stateKind(row) {
  if (row.is_paused) return "warning";
  if (row.has_consumer) return "ok";
  return row.depth > 0 ? "warning" : "quiet";
}

function pauseButton(view, row) {
  return actionButton(view, {
    operation: row.is_paused ? "queue.resume" : "queue.pause",
    place: "pause",
    params: { queue: row.name },
    says: (result) => `${result.name} is ${stateOf(result)}`,
  });
}

/** The form of a message: with the fields of its type, if the queue has one. */
function messageSchema(view, queue) {
  const schema = view.get("queue.schema", { queue })?.schema;
  if (!schema) return POST_SCHEMA;
  const { $defs, ...body } = schema;
  const properties = { ...POST_SCHEMA.properties, body: { ...body, title: "Body" } };
  return { ...POST_SCHEMA, $defs, properties };
}

function postButton(view, queue) {
  const { body, ...rest } = POST_SCHEMA.properties;
  const schema = queue
    ? messageSchema(view, queue)
    : {
        ...POST_SCHEMA,
        properties: { queue: { type: "string", title: "Queue" }, body, ...rest },
        required: ["queue", "body"],
      };
  return actionButton(view, {
    operation: "queue.post",
    kind: "primary",
    params: queue ? { queue } : {},
    title: queue ? `Post to ${queue}` : "Post a message",
    schema,
    confirm: "Post",
    says: (result) => `message ${result.id}`,
  });
}

function queuePage(view, name) {
  return [
    heading(name, h("a", { href: link("queues") }, "all queues")),
    shown(view, "queue.show", { queue: name }, (queue) => [
      panel(
        "Queue",
        facts([
          ["Type", view.get("queue.schema", { queue: name })?.type ?? "bytes"],
          ["State", badge(stateOf(queue), stateKind(queue))],
          ["Waiting", count(queue.depth)],
          ["In flight", count(queue.in_flight)],
          ["Oldest", span(queue.oldest_age_s)],
          ["Handled", count(queue.handled)],
          ["Failed", count(queue.failed)],
        ]),
        h("div.buttons", null, buttons(view, queue)),
      ),
    ]),
    panel("Messages", peek(view, name)),
  ];
}

function buttons(view, queue) {
  const params = { queue: queue.name };
  const text = `${plural(queue.depth, "message")} in ${queue.name} now.`;
  return [
    postButton(view, queue.name),
    pauseButton(view, queue),
    actionButton(view, {
      operation: "queue.move",
      label: "Move…",
      params,
      title: `Move the messages of ${queue.name}?`,
      text: `${text} They are put into the other queue as if they were new.`,
      schema: {
        type: "object",
        properties: {
          to: { type: "string", title: "To queue" },
          limit: { type: "integer", title: "How many at most", description: "all if empty" },
        },
        required: ["to"],
      },
      confirm: `Move ${plural(queue.depth, "message")}`,
      says: (result) => `${plural(result.count, "message")} moved`,
    }),
    actionButton(view, {
      operation: "queue.purge",
      label: "Purge…",
      params,
      title: `Purge ${queue.name}?`,
      text: `${text} They are thrown away and cannot be brought back.`,
      confirm: `Purge ${plural(queue.depth, "message")}`,
      says: (result) => `${plural(result.count, "message")} thrown away`,
    }),
    h("a", { href: link("dead", [], { queue: queue.name }) }, "Dead letters of this queue"),
  ];
}

function peek(view, name) {
  const params = peekParams(view, name);
  return [
    params.id &&
      h(
        "p",
        null,
        `Only message ${params.id}. `,
        h("a", { href: link("queues", [name]) }, "Show all"),
      ),
    shown(view, "queue.peek", params, (rows) =>
      letterTable(view, {
        rows,
        operation: "queue.peek",
        params,
        nothing: [
          "Nothing waits here.",
          "What is looked at stays in the queue: looking takes nothing.",
          asCommand("queue.post", { queue: name, body: { hello: "world" } }, view.node),
        ],
      }),
    ),
  ];
}
