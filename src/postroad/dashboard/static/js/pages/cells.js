// Cells: domains and the tunnels to them, the cells here, their routes, and commands.

import { actionButton, copies, READ_ONLY, refusalOf } from "../act.js";
import { call } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, milliseconds, plural, span } from "../format.js";
import { menuButton } from "../menu.js";
import { badge, empty, heading, panel, shown, tabs, trouble } from "../pieces.js";
import { link } from "../router.js";
import { mayChange } from "../session.js";
import { numberColumn, tableOf } from "../table.js";
import { tellReason } from "../toast.js";

const KIND_OF_STATE = { idle: "ok", busy: "ok", draining: "warning" };

export default {
  path: "cells",
  title: "Cells",
  watches: (view) => {
    const tab = view.route.query.tab;
    if (view.route.args.length > 0) return [["cells.ps", {}]];
    if (tab === "routes") return [["cells.routes", {}]];
    if (tab === "domains") return [["cells.domains", {}]];
    return [["cells.ps", {}]];
  },
  draw: (view) => {
    const [name] = view.route.args;
    return name === undefined ? listPage(view) : cellPage(view, name);
  },
};

function listPage(view) {
  const tab = view.route.query.tab || "cells";
  const tabLink = (it) => ({
    label: it[0].toUpperCase() + it.slice(1),
    href: link("cells", [], it === "cells" ? {} : { tab: it }),
    isHere: it === tab,
  });
  return [
    heading("Cells"),
    tabs(["cells", "domains", "routes", "tools"].map(tabLink)),
    tab === "domains"
      ? domains(view)
      : tab === "routes"
        ? routes(view)
        : tab === "tools"
          ? tools(view, "")
          : cells(view),
  ];
}

function cells(view) {
  return shown(view, "cells.ps", {}, (rows) =>
    tableOf(view, {
      name: "cells",
      operation: "cells.ps",
      rows,
      key: (row) => `${row.name}@${row.domain}`,
      columns: [
        {
          label: "Cell",
          value: (row) => row.name,
          show: (row) => h("a", { href: link("cells", [row.name]) }, row.name),
        },
        {
          label: "State",
          value: (row) => row.state,
          show: (row) => badge(row.state, KIND_OF_STATE[row.state]),
        },
        numberColumn("Waiting", (row) => row.waiting),
        numberColumn("Oldest", (row) => row.oldest_wait_s, span, { isTime: true, isWide: true }),
        numberColumn("Handled", (row) => row.handled),
        { label: "Kind", value: (row) => row.kind, isWide: true },
        {
          label: "Takes",
          value: (row) => [...(row.consumes || []), ...(row.subscribes || [])].join(" "),
          isWide: true,
        },
        { label: "Description", value: (row) => row.description, isWide: true },
      ],
      empty: empty(
        "No cells.",
        "A class that derives from postroad.cells.Cell is one.",
        "postroad cells ps",
      ),
    }),
  );
}

function domains(view) {
  return shown(view, "cells.domains", {}, (rows) =>
    tableOf(view, {
      name: "domains",
      operation: "cells.domains",
      rows,
      key: (row) => row.name,
      columns: [
        {
          label: "Domain",
          value: (row) => row.name,
          show: (row) => [row.name, row.is_local && h("span.muted", null, " this one")],
        },
        { label: "Role", value: (row) => row.role },
        { label: "Zone", value: (row) => row.zone, isWide: true },
        { label: "Gateway", value: (row) => row.gateway, isWide: true },
        numberColumn("Round trip", (row) => row.round_trip_ms, milliseconds),
        { label: "Sent", value: (row) => row.sent, show: (row) => count(row.sent), isNumber: true },
        numberColumn("Received", (row) => row.received),
        numberColumn("Waiting", (row) => row.waiting),
      ],
      empty: empty("No domains.", "This node has no cells.", "postroad cells domains"),
    }),
  );
}

function routes(view) {
  return shown(view, "cells.routes", {}, (rows) =>
    tableOf(view, {
      name: "routes",
      operation: "cells.routes",
      rows,
      key: (row) => `${row.type} ${row.destination} ${row.target}`,
      columns: [
        { label: "Type", value: (row) => row.type },
        {
          label: "Destination",
          value: (row) => row.destination,
          show: (row) => h("code", null, row.destination),
        },
        { label: "Target", value: (row) => row.target, show: (row) => h("code", null, row.target) },
        { label: "Zone", value: (row) => row.zone },
      ],
      empty: empty("No routes.", "Routes are made as cells and tunnels come."),
    }),
  );
}

function cellPage(view, name) {
  return [
    heading(name, h("a", { href: link("cells") }, "all cells")),
    shown(view, "cells.ps", {}, (rows) => {
      const cell = rows.find((it) => it.name === name || `${it.name}@${it.domain}` === name);
      if (cell === undefined) {
        return empty(
          `No cell of this node is called “${name}”.`,
          "It may be gone, or be one of another node: those can be reached by the tools below.",
          "postroad cells ps",
        );
      }
      return panel("Cell", cellFacts(cell), h("div.buttons", null, cellButtons(view, cell)));
    }),
    tools(view, name),
  ];
}

function cellFacts(cell) {
  const pairs = [
    ["State", badge(cell.state, KIND_OF_STATE[cell.state])],
    ["Kind", cell.kind],
    ["Description", cell.description],
    ["Waiting", `${count(cell.waiting)}, ${bytes(cell.waiting_bytes)}`],
    ["Oldest", span(cell.oldest_wait_s)],
    ["Running", count(cell.running)],
    ["Handled", count(cell.handled)],
    ["Consumes", (cell.consumes || []).join(", ")],
    ["Subscribes", (cell.subscribes || []).join(", ")],
  ];
  return h(
    "dl.facts",
    null,
    pairs.map(([name, value]) => [h("dt", null, name), h("dd", null, value || "–")]),
  );
}

function cellButtons(view, cell) {
  const params = { cell: `${cell.name}@${cell.domain}` };
  // A tunnel can be closed, though it belongs to the domain.
  const isTunnel = cell.kind === "TunnelCell";
  const ofDomain = cell.is_system ? "It belongs to the domain itself." : "";
  const isDraining = cell.state === "draining";
  return [
    actionButton(view, {
      operation: "cells.drain",
      params,
      reason: ofDomain || (isDraining ? "It is draining already." : ""),
      says: (result) => result.text,
    }),
    actionButton(view, {
      operation: "cells.kill",
      label: "Kill…",
      params,
      title: `Kill ${params.cell}?`,
      text: isTunnel
        ? "1 tunnel is closed. It is opened again if both domains want it."
        : `1 cell is stopped, with ${plural(cell.waiting, "message")} that wait for it. Only a new start of the node brings it back.`,
      confirm: isTunnel ? "Close 1 tunnel" : "Kill 1 cell",
      reason: isTunnel ? "" : ofDomain,
      says: (result) => result.text,
    }),
  ];
}

/** Ping, traceroute, and commands, for any cell that can be reached. */
function tools(view, name) {
  const { state } = view;
  state.path ??= name || "System";
  state.command ??= "help";
  const set = (field) => (event) => {
    state[field] = event.target.value;
    view.update();
  };
  const run = (operation, params) => async () => {
    state.asked = operation;
    try {
      state.answer = await call(operation, params, { node: view.node });
      state.failure = null;
    } catch (error) {
      state.failure = error;
    }
    view.update();
  };
  const path = { path: state.path };
  const command = { cell: state.path, command: state.command };
  return panel(
    "Tools",
    h(
      "form.inline",
      {
        onsubmit: (event) => {
          event.preventDefault();
          if (mayChange()) run("cells.run", command)();
          else tellReason(READ_ONLY);
        },
      },
      h(
        "div.together",
        null,
        h("label", { for: "cell-path" }, "Cell"),
        h("input", {
          id: "cell-path",
          value: state.path,
          oninput: set("path"),
          placeholder: "cell@domain",
        }),
        toolButton(view, "cells.ping", "Ping", { ...path, count: 3 }, run),
        toolButton(view, "cells.traceroute", "Traceroute", path, run),
      ),
      h(
        "div.together",
        null,
        h("label", { for: "cell-command" }, "Command"),
        h("input", { id: "cell-command", value: state.command, oninput: set("command") }),
        toolButton(view, "cells.run", "Run", command, run),
      ),
    ),
    !state.asked &&
      h("p.muted", null, "The command “help” tells what a cell understands; Enter runs it."),
    state.failure ? trouble(state.failure) : state.answer && answer(state),
  );
}

function toolButton(view, operation, label, params, run) {
  const reason = operation === "cells.run" && !mayChange() ? READ_ONLY : "";
  return h(
    "span.split",
    null,
    h(
      "button",
      {
        type: "button",
        "data-operation": operation,
        ...refusalOf(reason, run(operation, params)),
      },
      label,
    ),
    menuButton(`Copy “${label}” as a command`, () => copies(operation, params, view.node)),
  );
}

function answer({ asked, answer: told }) {
  if (asked === "cells.run")
    return h("pre.code.raw", { tabindex: 0 }, told.text || "(it said nothing)");
  if (asked === "cells.ping") {
    return h(
      "ul.plain",
      null,
      told.map((it) =>
        h(
          "li",
          null,
          `${it.number}: `,
          it.error ? h("span.wrong", null, it.error) : milliseconds(it.round_trip_ms),
          it.answered_by && h("span.muted", null, ` from ${it.answered_by}`),
        ),
      ),
    );
  }
  return h(
    "ol.plain",
    null,
    told.map((it) =>
      h(
        "li",
        null,
        h("strong", null, it.domain),
        ` ${it.is_out ? "out " : ""}${it.is_back ? "back " : ""}`,
        it.error ? h("span.wrong", null, it.error) : milliseconds(it.round_trip_ms),
      ),
    ),
  );
}
