// Dead letters: what nobody could deliver or handle, by what they died of.

import { actionButton } from "../act.js";
import { h } from "../dom.js";
import { bytes, count, plural, time } from "../format.js";
import { badge, empty, facts, folded, heading, identity, panel, shown } from "../pieces.js";
import { link } from "../router.js";
import { numberColumn, pickedOf, tableOf, tableState } from "../table.js";
import { bodyOf, headersOf } from "./letters.js";

const SHOWN = 200;

export default {
  path: "dead",
  title: "Dead letters",
  mark: (view) => {
    const dead = view.overview?.dead || 0;
    return dead > 0
      ? { kind: "failing", text: count(dead), title: plural(dead, "dead letter") }
      : null;
  },
  watches: (view) => {
    const [id] = view.route.args;
    if (id !== undefined) return [["dlq.show", { id }]];
    return [
      ["dlq.groups", {}],
      ["dlq.ls", pageOf(view)],
    ];
  },
  draw: (view) => {
    const [id] = view.route.args;
    return id === undefined ? listPage(view) : letterPage(view, id);
  },
};

function filterOf(view, more = {}) {
  const { queue, reason } = view.route.query;
  return { ...(queue && { queue }), ...(reason && { reason }), ...more };
}

/** Which of them are shown: so many, after the last one of the page before. */
function pageOf(view) {
  const { after } = view.route.query;
  return filterOf(view, { ...(after && { after }), limit: SHOWN });
}

function listPage(view) {
  const filter = filterOf(view);
  const isFiltered = Object.keys(filter).length > 0;
  return [
    heading("Dead letters"),
    shown(view, "dlq.groups", {}, (groups) => [
      panel("By what they died of", groupTable(view, groups)),
      groups.length > 0 &&
        panel(
          isFiltered ? `Those of ${Object.values(filter).join(", ")}` : "All of them",
          isFiltered && h("p", null, h("a", { href: link("dead") }, "Show all")),
          letters(view, filter, totalOf(groups, filter)),
        ),
    ]),
  ];
}

function totalOf(groups, filter) {
  return groups
    .filter((it) => !filter.queue || it.queue === filter.queue)
    .filter((it) => !filter.reason || it.reason === filter.reason)
    .reduce((sum, it) => sum + it.count, 0);
}

function groupTable(view, groups) {
  return tableOf(view, {
    name: "reasons",
    operation: "dlq.groups",
    rows: groups,
    key: (row) => `${row.queue} ${row.reason} ${row.detail}`,
    columns: [
      { label: "Queue", value: (row) => row.queue },
      {
        label: "Reason",
        value: (row) => row.reason,
        show: (row) =>
          h("a", { href: link("dead", [], { queue: row.queue, reason: row.reason }) }, row.reason),
      },
      { label: "Detail", value: (row) => row.detail, show: (row) => folded(row.detail, 70) },
      numberColumn("Count", (row) => row.count),
      {
        label: "First",
        value: (row) => row.oldest_at,
        show: (row) => time(row.oldest_at),
        isWide: true,
      },
      {
        label: "Last",
        value: (row) => row.newest_at,
        show: (row) => time(row.newest_at),
        isWide: true,
      },
    ],
    empty: empty(
      "No dead letters.",
      "A message comes here when its handler has failed too often, when it was too late, or when nobody could take it. From here it can be tried again.",
      "postroad dlq ls",
    ),
  });
}

function letters(view, filter, total) {
  const params = pageOf(view);
  return shown(view, "dlq.ls", params, (rows) => {
    const table = letterTable(rows, params);
    const picked = pickedOf(view, table);
    return [
      h("div.buttons", null, buttons(view, table, picked, filter, total)),
      tableOf(view, table),
      h(
        "p.pager",
        null,
        total > rows.length &&
          h("span.muted", null, `${count(rows.length)} of ${count(total)} are shown.`),
        params.after && h("a", { href: link("dead", [], filter) }, "First"),
        rows.length === SHOWN &&
          h("a", { href: link("dead", [], { ...filter, after: rows.at(-1).id }) }, "More"),
      ),
    ];
  });
}

function buttons(view, table, picked, filter, total) {
  const isSome = picked.length > 0;
  const params = isSome ? { ids: picked } : filter;
  const amount = isSome ? picked.length : total;
  const which = isSome ? plural(amount, "selected letter") : `all ${plural(amount, "letter")}`;
  const forget = () => {
    tableState(view, table.name).picked = new Set();
  };
  return [
    actionButton(view, {
      operation: "dlq.retry",
      label: `Retry ${which}`,
      kind: "primary",
      params,
      reason: amount === 0 ? "There is none" : "",
      says: (result) => `${plural(result.count, "letter")} put back`,
      done: forget,
    }),
    actionButton(view, {
      operation: "dlq.drop",
      label: `Drop ${which}`,
      params,
      reason: amount === 0 ? "There is none" : "",
      title: `Drop ${which}?`,
      text: `${plural(amount, "dead letter is", "dead letters are")} forgotten for good.`,
      confirm: `Drop ${plural(amount, "letter")}`,
      says: (result) => `${plural(result.count, "letter")} dropped`,
      done: forget,
    }),
  ];
}

function letterTable(rows, params) {
  return {
    name: "dead letters",
    operation: "dlq.ls",
    params,
    canSelect: true,
    rows,
    key: (row) => row.id,
    columns: [
      {
        label: "Id",
        value: (row) => row.id,
        show: (row) => h("a", { href: link("dead", [row.id]) }, row.id),
      },
      {
        label: "Queue",
        value: (row) => row.queue,
        show: (row) => [row.queue, row.is_outbound && h("span.muted", null, ` of ${row.peer}`)],
      },
      { label: "Reason", value: (row) => row.reason, isWide: true },
      {
        label: "Detail",
        value: (row) => row.detail,
        show: (row) => folded(row.detail, 40),
        isWide: true,
      },
      { label: "Body", value: (row) => row.body, show: (row) => folded(row.body, 50) },
      { label: "Failures", value: (row) => row.failures, isNumber: true, isWide: true },
      { label: "Retried", value: (row) => row.retried, show: retriedMark, isNumber: true },
      { label: "Died", value: (row) => row.died_at, show: (row) => time(row.died_at) },
    ],
    empty: empty("None of these is left.", "They were put back, dropped, or never were."),
  };
}

function retriedMark(row) {
  return row.retried > 0
    ? badge(`retried ${row.retried === 1 ? "once" : `${row.retried} times`}`, "warning")
    : h("span.muted", null, "–");
}

function letterPage(view, id) {
  return [
    heading(`Dead letter ${id}`, h("a", { href: link("dead") }, "all dead letters")),
    shown(view, "dlq.show", { id }, (letter) => [
      panel(
        "Why",
        facts([
          ["Reason", letter.reason],
          ["Detail", letter.detail],
          ["Queue", h("a", { href: link("queues", [letter.queue]) }, letter.queue)],
          [letter.is_outbound ? "For" : "From", letter.peer],
          ["Message", identity(letter.message ?? letter.id)],
          ["Failures", count(letter.failures)],
          ["Retried", retriedMark(letter)],
          ["Died", time(letter.died_at)],
        ]),
        h("div.buttons", null, oneButtons(view, letter)),
      ),
      panel(
        "Message",
        facts([
          ["Key", letter.key],
          ["Headers", headersOf(letter)],
          ["Size", `${bytes(letter.size)}, ${letter.encoding}`],
        ]),
        bodyOf(letter),
      ),
    ]),
  ];
}

function oneButtons(view, letter) {
  const params = { ids: [letter.id] };
  const leave = () => {
    location.hash = link("dead");
  };
  return [
    actionButton(view, {
      operation: "dlq.retry",
      kind: "primary",
      params,
      says: (result) => `${plural(result.count, "letter")} put back`,
      done: leave,
    }),
    actionButton(view, {
      operation: "dlq.drop",
      label: "Drop…",
      params,
      title: `Drop dead letter ${letter.id}?`,
      text: "1 dead letter is forgotten for good.",
      confirm: "Drop 1 letter",
      says: (result) => `${plural(result.count, "letter")} dropped`,
      done: leave,
    }),
  ];
}
