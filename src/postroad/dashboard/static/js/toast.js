// Short words about what was done, at the edge of the window; what went wrong stays until read.

import { h, render } from "./dom.js";
import { icon } from "./icons.js";

const SHOWN_MS = 6_000;
let toasts = [];
let nextKey = 1;

/** Say that something worked. */
export function tell(title, text = "", link = null) {
  const key = add({ kind: "ok", title, text, link });
  setTimeout(() => dismiss(key), SHOWN_MS);
}

/** Say that something did not work, why, and what to do next. */
export function tellProblem(problem) {
  add({ kind: "failing", title: problem.title, text: problem.message, next: problem.next });
}

/** Say why something cannot be done now. */
export function tellReason(reason) {
  const key = add({ kind: "warning", title: "Not now", text: reason });
  setTimeout(() => dismiss(key), SHOWN_MS);
}

function add(toast) {
  const key = nextKey;
  nextKey += 1;
  toasts = [...toasts.slice(-3), { key, ...toast }];
  show();
  return key;
}

function dismiss(key) {
  toasts = toasts.filter((it) => it.key !== key);
  show();
}

function show() {
  render(
    document.getElementById("toasts"),
    toasts.map((it) =>
      h(
        `div.toast.${it.kind}`,
        { key: it.key, role: it.kind === "failing" ? "alert" : "status" },
        h(
          "div",
          null,
          h("strong", null, it.title),
          it.text && h("p", null, it.text),
          it.next && h("p.next", null, "Next: ", it.next),
          it.link && h("p", null, h("a", { href: it.link.href }, it.link.label)),
        ),
        h(
          "button.icon",
          { "aria-label": "Dismiss", onclick: () => dismiss(it.key) },
          icon("close"),
        ),
      ),
    ),
  );
}
