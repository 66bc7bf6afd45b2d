// Icons, drawn, because no font can be relied on to have them.

import { h } from "./dom.js";

const SHAPES = {
  copy: ["M5.5 5.5h8v8h-8z", "M10.5 5.5v-3h-8v8h3"],
  more: ["M3 8h.01", "M8 8h.01", "M13 8h.01"],
  close: ["M4 4l8 8", "M12 4l-8 8"],
  leave: ["M6.5 2.5h-4v11h4", "M6.5 8h7", "M10.5 5l3 3-3 3"],
  light: [
    "M8 5a3 3 0 1 0 0 6 3 3 0 1 0 0-6z",
    "M8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15",
    "M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
  ],
  dark: ["M13 9.5A5.5 5.5 0 1 1 6.5 3a4.5 4.5 0 0 0 6.5 6.5z"],
  system: ["M2.5 3.5h11v7h-11z", "M6 13.5h4M8 10.5v3"],
};

/** @param {keyof typeof SHAPES} name */
export function icon(name) {
  return h(
    `svg.drawn.${name}`,
    { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" },
    SHAPES[name].map((d) => h("path", { d })),
  );
}
