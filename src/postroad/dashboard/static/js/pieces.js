// Small pieces that many pages are made of.

import { h } from "./dom.js";
import { brief, pretty } from "./format.js";
import { icon } from "./icons.js";
import { copy } from "./menu.js";

const KIND_OF_STATUS = {
  ok: "ok",
  alive: "ok",
  running: "ok",
  connected: "ok",
  open: "ok",
  ready: "ok",
  completed: "ok",
  ended: "ok",
  finished: "ok",
  done: "ok",
  warning: "warning",
  suspect: "warning",
  paused: "warning",
  starting: "warning",
  draining: "warning",
  retrying: "warning",
  waiting: "quiet",
  failing: "failing",
  failed: "failing",
  dead: "failing",
  killed: "failing",
  lost: "failing",
  error: "failing",
  critical: "failing",
};

/** A word with a colour and a dot; the word alone says all. */
export function badge(status, kind = KIND_OF_STATUS[String(status).toLowerCase()] || "quiet") {
  return h(`span.badge.${kind}`, null, String(status));
}

export function heading(title, ...beside) {
  return h("div.heading", null, h("h1", null, title), beside);
}

export function panel(title, ...content) {
  return h("section.panel", { "aria-label": title }, title && h("h2", null, title), content);
}

/** Names and values. */
export function facts(pairs) {
  return h(
    "dl.facts",
    null,
    pairs
      .filter(Boolean)
      .map(([name, value]) => [h("dt", null, name), h("dd", null, value ?? "–")]),
  );
}

/** Something that everybody on this page should know. */
export function notice(kind, title, text) {
  return h(`div.notice.${kind}`, { role: "status" }, h("strong", null, title), h("p", null, text));
}

/** What is shown where nothing is: why, and what to do about it. */
export function empty(title, text, command) {
  return h(
    "div.empty",
    null,
    h("p", null, h("strong", null, title)),
    text && h("p", null, text),
    command && codeLine(command),
  );
}

/** A command that can be copied. */
export function codeLine(text) {
  return h(
    "div.codeline",
    null,
    h("code", null, text),
    h(
      "button.icon",
      { type: "button", "aria-label": "Copy the command", onclick: () => copy(text) },
      icon("copy"),
    ),
  );
}

/** Any value, laid out. */
export function code(value) {
  return h("pre.code", { tabindex: 0 }, pretty(value));
}

/** Any value in one line that opens to all of it. */
export function folded(value, longest = 80) {
  const all = pretty(value);
  const line = brief(value, longest);
  if (all.length <= longest && !all.includes("\n")) return h("code", null, all);
  return h(
    "details.folded",
    null,
    h("summary", null, h("code", null, line)),
    h("pre.code", null, all),
    h("button.link", { type: "button", onclick: () => copy(all) }, "Copy"),
  );
}

/** An id, short enough for a table and whole for the clipboard. */
export function identity(id, href) {
  const short = id.length > 20 ? `${id.slice(0, 8)}…${id.slice(-8)}` : id;
  const shown = h("code", { title: id }, short);
  return h("span.identity", null, href ? h("a", { href }, shown) : shown, copyMark(id));
}

function copyMark(text) {
  return h(
    "button.icon.faint",
    { type: "button", "aria-label": `Copy ${text}`, title: "Copy", onclick: () => copy(text) },
    icon("copy"),
  );
}

/** Tabs that are links, so that each has an address. */
export function tabs(items) {
  return h(
    "nav.tabs",
    { "aria-label": "Parts of this page" },
    items.map(({ label, href, isHere }) =>
      h("a", { href, "aria-current": isHere ? "page" : null }, label),
    ),
  );
}

function loading() {
  return h("p.muted.loading", { "aria-live": "polite" }, "Asking the node…");
}

/** What to do about something that went wrong; a command can be copied. */
function nextStep(text) {
  const isCommand = text.startsWith("postroad ");
  return h("p.next", null, "Next: ", isCommand ? codeLine(text) : text);
}

/** What the node has against showing this. */
export function trouble(problem) {
  return h(
    "div.notice.failing",
    { role: "alert" },
    h("strong", null, problem.title),
    h("p", null, problem.message),
    problem.next && nextStep(problem.next),
  );
}

/** The result of an operation, its problem, or that it is awaited. */
export function shown(view, operation, params, draw) {
  const problem = view.problem(operation, params);
  if (problem !== undefined) return trouble(problem);
  const result = view.get(operation, params);
  return result === undefined ? loading() : draw(result);
}
