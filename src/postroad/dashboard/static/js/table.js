// Tables: sorted by a press on a head, filtered by typing, selected, copied and taken home.

import { copies } from "./act.js";
import { h } from "./dom.js";
import { count } from "./format.js";
import { menuButton } from "./menu.js";

const PAGE_ROWS = 200;

/**
 * @typedef {object} Column
 * @property {string} label
 * @property {(row: any) => any} value what it is sorted by, and what a CSV says
 * @property {(row: any) => any} [show] what is seen; the value by default
 * @property {boolean} [isNumber] right-aligned
 * @property {boolean} [isTime] with room for the longest, so that nothing moves when a minute is over
 * @property {boolean} [isWide] left out where there is little room
 */

/**
 * @typedef {object} Table
 * @property {string} name unique on its page
 * @property {Column[]} columns
 * @property {any[]} rows
 * @property {(row: any) => string} key
 * @property {any} empty what is shown if there are no rows
 * @property {string} [operation] what it shows
 * @property {object} [params]
 * @property {boolean} [canSelect]
 * @property {(row: any) => string} [rowClass]
 */

/** A column of numbers, shown as `format` writes them. */
export function numberColumn(label, value, format = count, more = {}) {
  return { label, value, show: (row) => format(value(row)), isNumber: true, ...more };
}

/** What a reader did to a table. */
export function tableState(view, name) {
  view.state.tables ??= {};
  view.state.tables[name] ??= {
    sort: null,
    isDown: false,
    filter: "",
    picked: new Set(),
    shown: PAGE_ROWS,
  };
  return view.state.tables[name];
}

/**
 * @param {import("./main.js").View} view
 * @param {Table} table
 */
export function tableOf(view, table) {
  const state = tableState(view, table.name);
  const rows = arranged(table, state);
  if (table.rows.length === 0) return h("div.table", null, table.empty);
  return h(
    "div.table",
    null,
    toolbar(view, table, state, rows),
    h(
      "div.scroll",
      { tabindex: 0, role: "region", "aria-label": table.name },
      h(
        "table",
        null,
        head(view, table, state, rows),
        h(
          "tbody",
          null,
          rows.slice(0, state.shown).map((row) => bodyRow(view, table, state, row)),
        ),
      ),
    ),
    rows.length > state.shown && more(view, state, rows.length),
  );
}

function arranged(table, state) {
  const wanted = state.filter.toLowerCase();
  const kept = wanted
    ? table.rows.filter((row) =>
        table.columns.some((it) =>
          String(it.value(row) ?? "")
            .toLowerCase()
            .includes(wanted),
        ),
      )
    : [...table.rows];
  const column = table.columns[state.sort];
  if (column === undefined) return kept;
  const sign = state.isDown ? -1 : 1;
  return kept.sort((one, other) => sign * compare(column.value(one), column.value(other)));
}

function compare(one, other) {
  if (one === other) return 0;
  if (one === null || one === undefined) return -1;
  if (other === null || other === undefined) return 1;
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}

function toolbar(view, table, state, rows) {
  const isFiltered = rows.length !== table.rows.length;
  return h(
    "div.toolbar",
    null,
    h("input", {
      type: "search",
      placeholder: "Filter",
      "aria-label": `Filter ${table.name}`,
      value: state.filter,
      oninput: (event) => {
        state.filter = event.target.value;
        view.update();
      },
    }),
    h(
      "span.muted",
      { "aria-live": isFiltered ? "polite" : "off" },
      isFiltered
        ? `${count(rows.length)} of ${count(table.rows.length)}`
        : count(table.rows.length),
    ),
    h("span.space"),
    menuButton(`Copy or download ${table.name}`, () => [
      ...(table.operation ? copies(table.operation, table.params || {}, view.node) : []),
      { label: "Download JSON", run: () => download(`${fileName(table)}.json`, asJson(rows)) },
      { label: "Download CSV", run: () => download(`${fileName(table)}.csv`, asCsv(table, rows)) },
    ]),
  );
}

function head(view, table, state, rows) {
  return h(
    "thead",
    null,
    h(
      "tr",
      null,
      table.canSelect && h("th.pick", { scope: "col" }, pickAll(view, table, state, rows)),
      table.columns.map((column, index) => headCell(view, state, column, index)),
    ),
  );
}

function headCell(view, state, column, index) {
  const isSorted = state.sort === index;
  const direction = isSorted ? (state.isDown ? "descending" : "ascending") : "none";
  const press = () => {
    state.isDown = isSorted ? !state.isDown : Boolean(column.isNumber);
    state.sort = index;
    view.update();
  };
  return h(
    "th",
    { scope: "col", class: cellClass(column), "aria-sort": direction },
    column.label &&
      h(
        "button",
        { type: "button", onclick: press },
        column.label,
        h("span.arrow", { "aria-hidden": "true" }, isSorted ? (state.isDown ? "↓" : "↑") : ""),
      ),
  );
}

function pickAll(view, table, state, rows) {
  const keys = rows.map(table.key);
  const isAll = keys.length > 0 && keys.every((it) => state.picked.has(it));
  return h("input", {
    type: "checkbox",
    "aria-label": "Select all",
    checked: isAll,
    onchange: () => {
      state.picked = new Set(isAll ? [] : keys);
      view.update();
    },
  });
}

function bodyRow(view, table, state, row) {
  const key = table.key(row);
  const pick = () => {
    if (!state.picked.delete(key)) state.picked.add(key);
    view.update();
  };
  return h(
    "tr",
    { key, class: table.rowClass?.(row) },
    table.canSelect &&
      h(
        "td.pick",
        null,
        h("input", {
          type: "checkbox",
          "aria-label": `Select ${key}`,
          checked: state.picked.has(key),
          onchange: pick,
        }),
      ),
    table.columns.map((column) =>
      h("td", { class: cellClass(column) }, (column.show || column.value)(row)),
    ),
  );
}

function cellClass(column) {
  const kinds = [
    column.isNumber && "number",
    column.isTime && "time",
    column.isWide && "wide",
    column.label === "" && "actions",
  ];
  return kinds.filter(Boolean).join(" ") || null;
}

function more(view, state, total) {
  const press = () => {
    state.shown += PAGE_ROWS;
    view.update();
  };
  return h(
    "p",
    null,
    h(
      "button",
      { type: "button", onclick: press },
      `Show more (${count(total - state.shown)} left)`,
    ),
  );
}

/** Those of the picked rows that are still there. */
export function pickedOf(view, table) {
  const { picked } = tableState(view, table.name);
  return table.rows.map(table.key).filter((it) => picked.has(it));
}

function fileName(table) {
  return `postroad-${(table.operation || table.name).replace(/[^a-z]+/gi, "-")}`;
}

function asJson(rows) {
  return JSON.stringify(rows, null, 2);
}

function asCsv(table, rows) {
  const columns = table.columns.filter((it) => it.label);
  const lines = [
    columns.map((it) => it.label),
    ...rows.map((row) => columns.map((it) => it.value(row))),
  ];
  return lines.map((line) => line.map(csvCell).join(",")).join("\r\n");
}

function csvCell(value) {
  const text =
    value !== null && typeof value === "object" ? JSON.stringify(value) : String(value ?? "");
  // A spreadsheet would take these for formulas.
  const safe = /^[=+\-@\t]/.test(text) && typeof value !== "number" ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = name;
  anchor.click();
  URL.revokeObjectURL(url);
}
