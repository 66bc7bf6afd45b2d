// A question before something is done: what exactly, how much of it, and whatever must be said.

import { h, render } from "./dom.js";
import { Form, formFields } from "./form.js";
import { menuButton } from "./menu.js";

/**
 * Ask, and wait for the answer.
 * @param {object} question
 * @param {string} question.title
 * @param {string} [question.text]
 * @param {object} [question.schema] what must be said besides
 * @param {object} [question.initial]
 * @param {string} question.confirm what the button says
 * @param {boolean} [question.isDanger]
 * @param {(values: object) => {label: string, run: () => void}[]} [question.copies]
 * @returns {Promise<object | null>} what was said; null if people thought better of it
 */
export function ask(question) {
  const dialog = document.getElementById("dialog");
  const form = new Form(question.schema || { type: "object", properties: {} }, question.initial);
  return new Promise((resolve) => {
    let answer = null;
    const submit = (event) => {
      event.preventDefault();
      const values = form.read();
      if (values === undefined) {
        draw();
        return;
      }
      answer = values;
      dialog.close();
    };
    const draw = () => render(dialog, content(question, form, submit, draw, dialog));
    dialog.onclose = () => resolve(answer);
    draw();
    dialog.showModal();
    // The harmless way out comes first for those who only press Enter.
    const first = "input, textarea, select, .confirm";
    dialog.querySelector(question.isDanger && !question.schema ? ".cancel" : first)?.focus();
  });
}

function content(question, form, submit, draw, dialog) {
  return h(
    "form",
    { method: "dialog", onsubmit: submit, "aria-labelledby": "dialog-title" },
    h("h2", { id: "dialog-title" }, question.title),
    question.text && h("p", null, question.text),
    question.schema && formFields(form, draw),
    h(
      "div.buttons",
      null,
      question.copies && menuButton("Copy as command", () => question.copies(form.read() || {})),
      h("span.space"),
      h("button.cancel", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      h(
        `button.confirm.${question.isDanger ? "danger" : "primary"}`,
        { type: "submit" },
        question.confirm,
      ),
    ),
  );
}
