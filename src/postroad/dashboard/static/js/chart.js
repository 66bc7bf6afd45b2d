// Charts of numbers over time, drawn as SVG.

import { h } from "./dom.js";
import { count } from "./format.js";

const SPARK = { width: 120, height: 28 };
const CHART = { height: 190, left: 48, bottom: 20, top: 8, right: 8 };
const WIDTH = { least: 280, most: 1340 };
const SECONDS = 120;
const SPARK_SECONDS_MIN = 20;

/** A line as wide as a word: how a number went in the last two minutes. */
export function sparkline(points, label) {
  const recent = lately(points);
  const highest = Math.max(1e-9, ...recent.map((it) => it.value));
  const oldest = recent[0]?.at ?? 0;
  const seconds = Math.max(SPARK_SECONDS_MIN, newest(recent) - oldest);
  const x = (it) => SPARK.width - (newest(recent) - it.at) * (SPARK.width / seconds);
  const y = (it) => SPARK.height - 2 - (it.value / highest) * (SPARK.height - 4);
  return h(
    "svg.spark",
    {
      viewBox: `0 0 ${SPARK.width} ${SPARK.height}`,
      role: "img",
      "aria-label": `${label}: ${count(recent.at(-1)?.value ?? 0)} now, ${count(highest)} at most`,
    },
    recent.length > 1 &&
      h("path.area", { d: `${path(recent, x, y)}V${SPARK.height}H${x(recent[0])}Z` }),
    h("path.line", { d: path(recent, x, y) }),
  );
}

/**
 * Some numbers over the same two minutes, with their scale.
 * @param {{label: string, kind: string, points: {at: number, value: number}[]}[]} lines
 */
export function chart(lines, unit) {
  const width = roomFor();
  const recent = lines.map((it) => ({ ...it, points: lately(it.points) }));
  const last = Math.max(0, ...recent.map((it) => newest(it.points)));
  const highest = niceLimit(Math.max(0, ...recent.flatMap((it) => it.points.map((p) => p.value))));
  const inner = width - CHART.left - CHART.right;
  const tall = CHART.height - CHART.top - CHART.bottom;
  const x = (it) => width - CHART.right - (last - it.at) * (inner / SECONDS);
  const y = (it) => CHART.top + tall - (it.value / highest) * tall;
  return h(
    "figure.chart",
    null,
    h(
      "svg",
      {
        viewBox: `0 0 ${width} ${CHART.height}`,
        width,
        height: CHART.height,
        role: "img",
        "aria-label": spoken(recent, unit),
      },
      [0, 0.5, 1].map((share) => gridLine(share, highest, y, width)),
      [0, 60, 120].map((ago) => timeMark(ago, x, last)),
      recent.map((it) => h(`path.line.${it.kind}`, { d: path(it.points, x, y) })),
    ),
    h(
      "figcaption",
      null,
      recent.map((it) =>
        h(
          "span",
          null,
          h(`i.mark.${it.kind}`, { "aria-hidden": "true" }),
          `${it.label} `,
          h("b", null, `${count(it.points.at(-1)?.value ?? 0)}${unit}`),
        ),
      ),
    ),
  );
}

/** As wide as a panel is: letters in a picture that is shrunk cannot be read. */
function roomFor() {
  const main = document.getElementById("main");
  const padding = main.clientWidth < 600 ? 50 : 82;
  return Math.max(WIDTH.least, Math.min(WIDTH.most, main.clientWidth - padding));
}

function gridLine(share, highest, y, width) {
  const at = y({ value: share * highest });
  return h(
    "g",
    null,
    h("line.grid", { x1: CHART.left, x2: width - CHART.right, y1: at, y2: at }),
    h("text", { x: CHART.left - 6, y: at + 4, "text-anchor": "end" }, count(share * highest)),
  );
}

function timeMark(ago, x, last) {
  const anchor = ago === 0 ? "end" : ago === SECONDS ? "start" : "middle";
  const text = ago === 0 ? "now" : `−${ago} s`;
  return h("text", { x: x({ at: last - ago }), y: CHART.height - 4, "text-anchor": anchor }, text);
}

function spoken(lines, unit) {
  return lines
    .map((it) => `${it.label}: ${count(it.points.at(-1)?.value ?? 0)}${unit} now`)
    .join(", ");
}

function lately(points) {
  const last = newest(points);
  return points.filter((it) => it.at >= last - SECONDS);
}

function newest(points) {
  return points.at(-1)?.at ?? 0;
}

function path(points, x, y) {
  if (points.length === 0) return "";
  return points
    .map((it, index) => `${index === 0 ? "M" : "L"}${x(it).toFixed(1)} ${y(it).toFixed(1)}`)
    .join("");
}

function niceLimit(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((it) => it * power).find((it) => it >= value);
}
