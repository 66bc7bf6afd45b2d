// One live picture of everything that is joined with something.

import { copies } from "../act.js";
import { h } from "../dom.js";
import { graph } from "../map.js";
import { menuButton } from "../menu.js";
import { badge, empty, facts, heading, panel, shown } from "../pieces.js";
import { linkTo } from "../router.js";

/** Left to right: what comes and waits, who is there, what they offer. */
const COLUMNS = { peer: 0, pipeline: 0, queue: 0, node: 1 };
const LAST_COLUMN = 2;
const KINDS = ["node", "service", "flow", "queue", "peer", "pipeline", "domain", "cell"];

export default {
  path: "map",
  title: "Map",
  watches: () => [["cluster.map", {}]],
  draw: (view) => [
    heading(
      "Map",
      h("span.space"),
      menuButton("Copy the map as a command", () => copies("cluster.map", {}, view.node)),
    ),
    shown(view, "cluster.map", {}, (map) => content(view, withoutTwins(map))),
  ],
};

/**
 * A node and its domain of cells are one and the same to people: the node stands for both.
 * Domains that are of no member stay.
 */
function withoutTwins(map) {
  const known = new Set(map.nodes.map((it) => it.id));
  const twinOf = (id) => {
    const node = id.replace(/^domain:/, "node:");
    return known.has(node) ? node : id;
  };
  return {
    nodes: map.nodes.filter((it) => twinOf(it.id) === it.id),
    edges: map.edges
      .map((it) => ({ ...it, source: twinOf(it.source), target: twinOf(it.target) }))
      .filter((it) => it.source !== it.target),
  };
}

function content(view, map) {
  view.state.hidden ??= new Set();
  const { hidden } = view.state;
  const boxes = map.nodes
    .filter((it) => !hidden.has(it.kind))
    .map((it) => ({ ...it, column: COLUMNS[it.kind] ?? LAST_COLUMN }));
  const selected = view.state.selected;
  const select = (id) => {
    view.state.selected = id === selected ? undefined : id;
    view.update();
  };
  return [
    legend(view, map, hidden),
    h(
      "div.map",
      null,
      boxes.length === 0
        ? empty("Nothing to draw.", "Show more kinds above, or start a node with services.")
        : graph(boxes, map.edges, {
            selected,
            onSelect: select,
            label: "Map of the cluster",
            isByName: true,
          }),
      details(map, selected, select),
    ),
  ];
}

function legend(view, map, hidden) {
  const kinds = KINDS.filter((kind) => map.nodes.some((it) => it.kind === kind));
  return h(
    "div.legend",
    { role: "group", "aria-label": "Kinds shown" },
    kinds.map((kind) =>
      h(
        "label",
        { key: kind },
        h("input", {
          type: "checkbox",
          checked: !hidden.has(kind),
          onchange: () => {
            if (!hidden.delete(kind)) hidden.add(kind);
            view.update();
          },
        }),
        h(`i.swatch.${kind}`, { "aria-hidden": "true" }),
        `${kind} ${map.nodes.filter((it) => it.kind === kind).length}`,
      ),
    ),
  );
}

function details(map, selected, select) {
  const node = map.nodes.find((it) => it.id === selected);
  if (node === undefined) {
    return panel(
      "Details",
      h("p.muted", null, "Choose something in the map to see what it is joined with."),
    );
  }
  const joined = map.edges.filter((it) => it.source === selected || it.target === selected);
  const neighbour = (it) => {
    const id = it.source === selected ? it.target : it.source;
    const label = map.nodes.find((other) => other.id === id)?.label ?? id;
    return h("button.link", { type: "button", onclick: () => select(id) }, label);
  };
  return panel(
    node.label,
    facts([
      ["Kind", node.kind],
      ["Status", badge(node.status)],
      node.detail && ["Detail", node.detail],
    ]),
    h(
      "ul.joined",
      null,
      joined.map((it) =>
        h(
          "li",
          { key: `${it.source} ${it.target} ${it.kind}` },
          h("span.muted", null, `${it.kind} `),
          neighbour(it),
          it.label && h("span.muted", null, ` ${it.label}`),
        ),
      ),
    ),
    h("p", null, h("a.button", { href: linkTo(node.noun, idOf(node)) }, "Open its page")),
  );
}

/** Ids in the map begin with the kind. */
function idOf(node) {
  const prefix = `${node.kind}:`;
  return node.id.startsWith(prefix) ? node.id.slice(prefix.length) : node.label;
}
