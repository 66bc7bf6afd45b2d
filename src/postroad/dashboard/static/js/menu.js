// A small menu beside a button: copies, downloads. One is open at a time.

import { h, render } from "./dom.js";
import { icon } from "./icons.js";
import { tell } from "./toast.js";

let opener = null;

/**
 * @typedef {{label: string, run: () => void}} Item
 */

/** A button that opens a menu. */
export function menuButton(label, items) {
  return h(
    "button.icon",
    {
      type: "button",
      "aria-label": label,
      "aria-haspopup": "menu",
      title: label,
      onclick: (event) => open(event.currentTarget, items()),
    },
    icon("more"),
  );
}

/** Put a text where the reader can paste it from. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    tell("Copied", text.length > 200 ? `${text.slice(0, 200)}…` : text);
  } catch {
    // Without leave to write there, as over plain HTTP, people copy by hand.
    window.prompt("Copy this:", text);
  }
}

function open(button, items) {
  if (opener === button) {
    close();
    return;
  }
  close();
  opener = button;
  const root = document.getElementById("menu");
  render(
    root,
    items.map((it) =>
      h(
        "button",
        {
          type: "button",
          role: "menuitem",
          onclick: () => {
            close();
            it.run();
          },
        },
        it.label,
      ),
    ),
  );
  // What is outside of a dialog that is open cannot be pressed.
  (button.closest("dialog") || document.body).append(root);
  root.hidden = false;
  place(root, button.getBoundingClientRect());
  root.querySelector("button")?.focus();
}

function place(root, beside) {
  const left = Math.min(beside.left, window.innerWidth - root.offsetWidth - 8);
  const isBelow = beside.bottom + root.offsetHeight < window.innerHeight;
  const top = isBelow ? beside.bottom + 2 : beside.top - root.offsetHeight - 2;
  root.style.setProperty("left", `${Math.max(8, left)}px`);
  root.style.setProperty("top", `${Math.max(8, top)}px`);
}

function close() {
  const root = document.getElementById("menu");
  if (root.hidden) return;
  root.hidden = true;
  const button = opener;
  opener = null;
  if (root.contains(document.activeElement)) button?.focus();
}

function move(root, by) {
  const items = [...root.querySelectorAll("button")];
  const at = items.indexOf(document.activeElement);
  items[(at + by + items.length) % items.length]?.focus();
}

/** Listen for what closes a menu and moves in it. */
export function startMenus() {
  document.addEventListener("click", (event) => {
    if (opener !== null && !opener.contains(event.target)) close();
  });
  window.addEventListener("scroll", close, true);
  document.getElementById("menu").addEventListener("keydown", (event) => {
    const root = event.currentTarget;
    if (event.key === "Escape") close();
    else if (event.key === "ArrowDown") move(root, 1);
    else if (event.key === "ArrowUp") move(root, -1);
    else if (event.key === "Tab") close();
    else return;
    event.preventDefault();
  });
}
