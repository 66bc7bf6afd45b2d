// A graph drawn in columns: whoever is looked at stays where it was while others come and go.

import { h } from "./dom.js";

const BOX = { narrow: 130, wide: 250, height: 28, gapX: 84, gapY: 10, roomyY: 22 };
const ROOM = 420;
const LETTER = { label: 6.6, bold: 7.7, kind: 5.6, around: 46 };
const ARC = { near: 16, far: 64, slope: 0.08 };
/** With more lines than these, each is drawn fainter. */
const FEW_EDGES = 60;
/** Letters stay legible when a picture is made to fit; further than so it scrolls instead. */
const SHRUNK_MIN = 0.88;

/**
 * @typedef {{id: string, kind: string, label: string, status: string, column: number,
 *   detail?: string}} Box
 * @typedef {{source: string, target: string, kind: string, label?: string, status?: string}} Edge
 * @typedef {Box & {x: number, y: number, width: number}} Placed
 */

/**
 * Give every box its place: columns side by side, boxes by kind and name, or near to what they
 * are joined with.
 * @param {Box[]} boxes
 * @param {Edge[]} edges
 * @param {boolean} isByName
 */
function layOut(boxes, edges, isByName) {
  const columns = columnsOf(boxes);
  if (isByName) return place(columns, edges);
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
  return place(columns, edges);
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
        one.kind.localeCompare(other.kind) ||
        one.label.localeCompare(other.label, "en", { numeric: true }),
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

function place(columns, edges) {
  const tallest = Math.max(1, ...columns.map((it) => it.length));
  // A few boxes stand further apart than many.
  const roomy = Math.floor(ROOM / tallest) - BOX.height;
  const gapY = Math.max(BOX.gapY, Math.min(BOX.roomyY, roomy));
  const height = tallest * (BOX.height + gapY) + gapY;
  let x = BOX.gapY + (hasArcs(columns[0], edges) ? ARC.far : 0);
  const placed = columns.flatMap((column) => {
    const used = column.length * (BOX.height + gapY) - gapY;
    const top = (height - used) / 2;
    const width = widthOf(column);
    const left = x;
    x += width + BOX.gapX;
    return column.map((box, row) => ({
      ...box,
      width,
      x: left,
      y: top + row * (BOX.height + gapY),
    }));
  });
  return { placed, width: Math.ceil(x - BOX.gapX + BOX.gapY), height };
}

/** As wide as the longest name in it, within reason. */
function widthOf(column) {
  const wanted = column.map((it) => besides(it) + it.label.length * letterOf(it));
  return Math.round(Math.min(BOX.wide, Math.max(BOX.narrow, ...wanted)));
}

/** What a box needs besides its name. */
function besides({ kind }) {
  return LETTER.around + kind.length * LETTER.kind;
}

function letterOf({ kind }) {
  return kind === "node" ? LETTER.bold : LETTER.label;
}

/** Whether lines lead from one box of a column to another. */
function hasArcs(column = [], edges) {
  const within = new Set(column.map((it) => it.id));
  return edges.some((it) => within.has(it.source) && within.has(it.target));
}

/**
 * Draw a graph.
 * @param {Box[]} boxes
 * @param {Edge[]} edges
 * @param {object} options
 * @param {string} options.label
 * @param {string} [options.selected]
 * @param {(id: string) => void} [options.onSelect]
 * @param {boolean} [options.isByName] boxes stand by kind and name, else near their neighbours
 */
export function graph(boxes, edges, { selected, onSelect, label, isByName = false }) {
  const { placed, width, height } = layOut(boxes, edges, isByName);
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
      {
        viewBox: `0 0 ${width} ${height}`,
        width,
        height,
        style: { "min-width": `${Math.round(width * SHRUNK_MIN)}px` },
      },
      h(
        "g",
        { class: drawn.length > FEW_EDGES || selected !== undefined ? "many" : null },
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
  if (left.x === right.x) {
    const bulge = left.x - Math.min(ARC.far, ARC.near + Math.abs(toY - fromY) * ARC.slope);
    return `M${left.x} ${fromY}C${bulge} ${fromY} ${bulge} ${toY} ${left.x} ${toY}`;
  }
  const fromX = left.x + left.width;
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
    h("rect", { width: box.width, height: BOX.height, rx: 6 }),
    h("circle", { cx: 13, cy: BOX.height / 2, r: 4 }),
    h("text.label", { x: 24, y: BOX.height / 2 + 4 }, shorten(box)),
    h("text.kind", { x: box.width - 8, y: BOX.height / 2 + 4, "text-anchor": "end" }, box.kind),
    h("title", null, box.detail ? `${box.label}: ${box.detail}` : box.label),
  );
}

function shorten(box) {
  const { label, width } = box;
  const room = Math.floor((width - besides(box)) / letterOf(box));
  return label.length > room + 1 ? `${label.slice(0, room - 1)}…` : label;
}
