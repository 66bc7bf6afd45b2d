// Members of the cluster, and one of them from near: health, configuration, logs.

import { actionButton } from "../act.js";
import { h } from "../dom.js";
import { bytes, count, milliseconds, since, time } from "../format.js";
import { badge, codeLine, empty, facts, heading, panel, shown, tabs } from "../pieces.js";
import { addressOf, link } from "../router.js";
import { numberColumn, tableOf } from "../table.js";

const LOG_LINES = 200;
const WATCHES = {
  health: [["node.health", {}]],
  config: [["node.config", {}]],
  logs: [["node.logs", { limit: LOG_LINES }]],
};

export default {
  path: "nodes",
  title: "Nodes",
  watches: (view) => {
    const [name] = view.route.args;
    if (name === undefined) return [];
    if (!isWatched(view, name)) return [["cluster.show", { member: name }]];
    return [["node.show", {}], ...(WATCHES[tabOf(view)] || WATCHES.health)];
  },
  draw: (view) => {
    const [name] = view.route.args;
    if (name === undefined) return [heading("Nodes"), members(view)];
    return isWatched(view, name) ? nodePage(view, name) : memberPage(view, name);
  },
};

/** Whether the operations of this page are done by the node of this name. */
function isWatched(view, name) {
  return name === (view.node || view.home?.name);
}

function tabOf(view) {
  return view.route.query.tab || "health";
}

function members(view) {
  return shown(view, "cluster.ls", {}, (rows) =>
    tableOf(view, {
      name: "members",
      operation: "cluster.ls",
      rows,
      key: (row) => row.name,
      columns: [
        {
          label: "Name",
          value: (row) => row.name,
          show: (row) => [
            h("a", { href: link("nodes", [row.name]) }, row.name),
            row.is_local && h("span.muted", null, " this one"),
          ],
        },
        { label: "State", value: (row) => row.state, show: (row) => badge(row.state) },
        {
          label: "Address",
          value: (row) => row.address,
          show: (row) => h("code", null, row.address),
        },
        numberColumn("Round trip", (row) => row.round_trip_ms, milliseconds),
        {
          label: "Properties",
          value: (row) => row.properties,
          show: (row) => propertiesOf(row),
          isWide: true,
        },
      ],
      empty: empty(
        "No members are known.",
        "This node has no cluster layer, or has just been started.",
        "postroad cluster ls",
      ),
    }),
  );
}

function propertiesOf(row) {
  return Object.entries(row.properties || {})
    .map(([name, value]) => `${name}=${value}`)
    .join(" ");
}

function memberPage(view, name) {
  return [
    heading(name, h("a", { href: link("nodes") }, "all nodes")),
    shown(view, "cluster.show", { member: name }, (member) => [
      panel(
        "As seen from here",
        facts([
          ["State", badge(member.state)],
          ["Address", h("code", null, member.address)],
          ["Round trip", milliseconds(member.round_trip_ms)],
          ["Properties", propertiesOf(member) || "none"],
        ]),
        h(
          "p",
          null,
          h(
            "a.button",
            { href: addressOf({ page: "nodes", args: [name], query: { node: name } }) },
            `Look through ${name}`,
          ),
        ),
      ),
    ]),
  ];
}

function nodePage(view, name) {
  const tab = tabOf(view);
  const state = view.get("node.show", {})?.state;
  const tabLink = (it) => ({
    label: it[0].toUpperCase() + it.slice(1),
    href: link("nodes", [name], { tab: it }),
    isHere: it === tab,
  });
  return [
    heading(
      name,
      actionButton(view, {
        operation: "node.drain",
        label: "Drain…",
        reason: state && state !== "running" ? `It is ${state} already.` : "",
        schema: {
          type: "object",
          properties: {
            timeout_s: { type: "number", title: "Wait at most, seconds", default: 30 },
          },
        },
        title: `Drain ${name}?`,
        text: "It takes nothing new, and lets what runs end. Only a new start takes it back.",
        confirm: "Drain",
        says: (result) => `${count(result.left)} still at work`,
      }),
      actionButton(view, {
        operation: "node.stop",
        label: "Stop…",
        title: `Stop ${name}?`,
        text: "The process ends in good order. Whatever starts it, a supervisor or you, brings it back.",
        confirm: `Stop ${name}`,
      }),
    ),
    shown(view, "node.show", {}, (node) => panel("Node", nodeFacts(node))),
    tabs(["health", "config", "logs"].map(tabLink)),
    tab === "config" ? config(view) : tab === "logs" ? logs(view) : health(view),
  ];
}

function nodeFacts(node) {
  return facts([
    ["State", [badge(node.state), ...node.reasons.map((it) => ` ${it}`)]],
    ["Cluster", node.cluster],
    ["Address", h("code", null, node.address)],
    ["Up", since(node.started_at)],
    ["Process", `${node.pid}, Python ${node.python}`],
    ["Version", node.version],
    ["Layers", node.layers.join(", ")],
    ["Store", h("code", null, node.store)],
    ["Memory", bytes(node.memory_bytes)],
    ["Processor", `${Math.round((node.cpu_share || 0) * 100)} %`],
    ["Encrypted", node.is_secure ? "yes" : "no: anybody on the network can read along"],
  ]);
}

function health(view) {
  return shown(view, "node.health", {}, (result) =>
    panel(
      result.is_ready ? "Ready" : `Not ready: ${result.reasons.join("; ")}`,
      tableOf(view, {
        name: "health checks",
        operation: "node.health",
        rows: result.checks,
        key: (row) => row.name,
        columns: [
          { label: "Check", value: (row) => row.name },
          { label: "Status", value: (row) => row.status, show: (row) => badge(row.status) },
          { label: "Detail", value: (row) => row.detail },
          {
            label: "Next",
            value: (row) => row.next,
            show: (row) => row.next && codeLine(row.next),
          },
        ],
        empty: empty("There are no health checks."),
      }),
    ),
  );
}

function config(view) {
  return shown(view, "node.config", {}, (rows) =>
    tableOf(view, {
      name: "configuration",
      operation: "node.config",
      rows,
      key: (row) => row.key,
      columns: [
        { label: "Key", value: (row) => row.key, show: (row) => h("code", null, row.key) },
        {
          label: "Value",
          value: (row) => row.value,
          show: (row) => h("code", null, settingText(row.value)),
        },
        { label: "From", value: (row) => row.origin },
      ],
      empty: empty("Nothing is configured.", "Everything is as it comes.", "postroad config show"),
    }),
  );
}

function settingText(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function logs(view) {
  const params = { limit: LOG_LINES };
  return shown(view, "node.logs", params, (rows) =>
    tableOf(view, {
      name: "log",
      operation: "node.logs",
      params,
      rows: [...rows].reverse(),
      key: (row) => `${row.at} ${row.logger} ${row.text}`,
      columns: [
        { label: "Time", value: (row) => row.at, show: (row) => time(row.at) },
        {
          label: "Level",
          value: (row) => row.level,
          show: (row) => badge(row.level.toLowerCase()),
        },
        {
          label: "Logger",
          value: (row) => row.logger,
          show: (row) => h("code", null, row.logger),
          isWide: true,
        },
        {
          label: "Text",
          value: (row) => row.text,
          show: (row) => h("span.logline", null, row.text),
        },
      ],
      empty: empty("Nothing was logged yet."),
    }),
  );
}
