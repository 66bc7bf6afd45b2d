// A graph drawn in columns: whoever is looked at stays where it was while others come and go.

import { h } from "./dom.js";

const BOX = { width: 158, height: 28, gapX: 60, gapY: 10, roomyY: 22 };
const ROOM = 420;
const LETTER = { label: 6.3, kind: 5.6 };
const ARC = 26;

/**
 * @typedef {{id: string, kind: string, label: string, status: string, column: number}} Box
 * @typedef {{source: string, target: string, kind: string, label?: string, status?: string}} Edge
 * @typedef {Box & {x: number, y: number}} Placed
 */

/**
 * Give every box its place: columns side by side, boxes near to what they are joined with.
 * @param {Box[]} boxes
 * @param {Edge[]} edges
 */
function layOut(boxes, edges) {
  const columns = columnsOf(boxes);
  const neighbours = neighboursOf(edges);
  const rank = new Map();
  for (const column of columns) column.forEach((it, index) => rank.set(it.id, index));
  // A few sweeps bring boxes beside their neighbours, so that fewer lines cross.
  for (let sweep = 0; sweep < 4; sweep += 1) {
    for (const column of sweep % 2 === 0 ? columns : [...columns].reverse()) {
      const pull = new Map(column.map((it) => [it.id, middle(it.id, neighbours, rank)]));
      column.sort(
        (one, other) =>
          pull.get(one.id) - pull.get(other.id) || one.label.localeCompare(other.label, "en"),
      );
      column.forEach((it, index) => rank.set(it.id, index));
    }
  }
  return place(columns);
}

function columnsOf(boxes) {
  const byColumn = new Map();
  for (const box of boxes) {
    byColumn.set(box.column, [...(byColumn.get(box.column) || []), box]);
  }
  const columns = [...byColumn.entries()].sort(([one], [other]) => one - other);
  return columns.map(([, column]) =>
    column.sort(
      (one, other) =>
        one.kind.localeCompare(other.kind) || one.label.localeCompare(other.label, "en"),
    ),
  );
}

function neighboursOf(edges) {
  const all = new Map();
  const join = (one, other) => all.set(one, [...(all.get(one) || []), other]);
  for (const { source, target } of edges) {
    join(source, target);
    join(target, source);
  }
  return all;
}

function middle(id, neighbours, rank) {
  const ranks = (neighbours.get(id) || [])
    .map((it) => rank.get(it))
    .filter((it) => it !== undefined);
  if (ranks.length === 0) return rank.get(id);
  return ranks.reduce((sum, it) => sum + it, 0) / ranks.length;
}

function place(columns) {
  const tallest = Math.max(1, ...columns.map((it) => it.length));
  // A few boxes stand further apart than many.
  const roomy = Math.floor(ROOM / tallest) - BOX.height;
  const gapY = Math.max(BOX.gapY, Math.min(BOX.roomyY, roomy));
  const height = tallest * (BOX.height + gapY) + gapY;
  const placed = columns.flatMap((column, index) => {
    const used = column.length * (BOX.height + gapY) - gapY;
    const top = (height - used) / 2;
    return column.map((box, row) => ({
      ...box,
      x: BOX.gapY + index * (BOX.width + BOX.gapX),
      y: top + row * (BOX.height + gapY),
    }));
  });
  const width = columns.length * (BOX.width + BOX.gapX) - BOX.gapX + 2 * BOX.gapY + ARC;
  return { placed, width: Math.max(width, BOX.width), height };
}

/**
 * Draw a graph.
 * @param {Box[]} boxes
 * @param {Edge[]} edges
 * @param {{selected?: string, onSelect?: (id: string) => void, label: string}} options
 */
export function graph(boxes, edges, { selected, onSelect, label }) {
  const { placed, width, height } = layOut(boxes, edges);
  const at = new Map(placed.map((it) => [it.id, it]));
  const drawn = edges.filter((it) => at.has(it.source) && at.has(it.target));
  const near = new Set(
    drawn
      .filter((it) => it.source === selected || it.target === selected)
      .flatMap((it) => [it.source, it.target]),
  );
  return h(
    "div.scroll.graph",
    { role: "group", "aria-label": label },
    h(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, width, height },
      h(
        "g",
        null,
        drawn.map((edge) => edgeLine(edge, at, selected)),
      ),
      placed.map((box) => boxShape(box, { selected, near, onSelect })),
    ),
  );
}

function edgeLine(edge, at, selected) {
  const isNear = edge.source === selected || edge.target === selected;
  const classes = [edge.kind, edge.status || "ok", isNear && "near"].filter(Boolean).join(" ");
  return h(
    "path.edge",
    {
      key: `${edge.source} ${edge.target} ${edge.kind}`,
      class: classes,
      d: curve(at.get(edge.source), at.get(edge.target)),
    },
    h("title", null, edge.label ? `${edge.kind}: ${edge.label}` : edge.kind),
  );
}

function curve(one, other) {
  const [left, right] = one.x <= other.x ? [one, other] : [other, one];
  const fromY = left.y + BOX.height / 2;
  const toY = right.y + BOX.height / 2;
  const fromX = left.x + BOX.width;
  if (left.x === right.x) {
    return `M${fromX} ${fromY}C${fromX + ARC} ${fromY} ${fromX + ARC} ${toY} ${fromX} ${toY}`;
  }
  const bend = (right.x - fromX) / 2;
  return `M${fromX} ${fromY}C${fromX + bend} ${fromY} ${right.x - bend} ${toY} ${right.x} ${toY}`;
}

function boxShape(box, { selected, near, onSelect }) {
  const isFaint = selected !== undefined && box.id !== selected && !near.has(box.id);
  const classes = [box.kind, box.status, box.id === selected && "selected", isFaint && "faint"];
  const choose = () => onSelect?.(box.id);
  return h(
    "g.box",
    {
      key: box.id,
      class: classes.filter(Boolean).join(" "),
      transform: `translate(${box.x} ${box.y})`,
      tabindex: onSelect ? 0 : null,
      role: onSelect ? "button" : null,
      "aria-pressed": onSelect ? String(box.id === selected) : null,
      "aria-label": `${box.kind} ${box.label}, ${box.status}`,
      onclick: choose,
      onkeydown: (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        choose();
      },
    },
    h("rect", { width: BOX.width, height: BOX.height, rx: 6 }),
    h("circle", { cx: 13, cy: BOX.height / 2, r: 4 }),
    h("text.label", { x: 24, y: BOX.height / 2 + 4 }, shorten(box.label, box.kind)),
    h("text.kind", { x: BOX.width - 8, y: BOX.height / 2 + 4, "text-anchor": "end" }, box.kind),
    h("title", null, box.label),
  );
}

function shorten(label, kind) {
  const room = Math.floor((BOX.width - 44 - kind.length * LETTER.kind) / LETTER.label);
  return label.length > room ? `${label.slice(0, room - 1)}…` : label;
}
