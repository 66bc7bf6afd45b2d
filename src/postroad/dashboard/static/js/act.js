// Buttons that do something at the node. Each asks first where that is due, says what came of it,
// and can be copied as a command.

import { effectOf, labelOf } from "./actions.js";
import { call } from "./api.js";
import { asCommand, asCurl } from "./commands.js";
import { ask } from "./dialog.js";
import { h } from "./dom.js";
import { copy, menuButton } from "./menu.js";
import { mayChange } from "./session.js";
import { tell, tellProblem, tellReason } from "./toast.js";

export const READ_ONLY = "Your token may look, but not change anything.";

/** What was begun and has not been answered. */
const underWay = new Set();

function keyOf(view, doing) {
  return JSON.stringify([view.node, doing.operation, doing.params]);
}

/**
 * @typedef {object} Doing
 * @property {string} operation
 * @property {object} [params] what is known already
 * @property {string} [label]
 * @property {string} [title] the question, if there is one
 * @property {string} [text] what it would touch, with the count
 * @property {string} [confirm] what the button of the question says
 * @property {object} [schema] what must be said besides
 * @property {object} [initial]
 * @property {string} [reason] why it cannot be done now
 * @property {string} [kind] `primary` or `quiet`
 * @property {string} [place] who it is among its neighbours, if its operation changes
 * @property {(result: any, params: object) => void} [done] told what came of it
 * @property {(result: any) => string} [says] what came of it in words
 */

/** The copies of an operation, for a menu. */
export function copies(operation, params, node) {
  return [
    { label: "Copy as CLI", run: () => copy(asCommand(operation, params, node)) },
    { label: "Copy as curl", run: () => copy(asCurl(operation, params, node)) },
  ];
}

/**
 * What a button says that cannot be pressed now. It can still be reached by keyboard and finger,
 * because whoever comes there wants to know why.
 */
export function refusalOf(reason, press) {
  return {
    "aria-disabled": reason ? "true" : null,
    title: reason || null,
    onclick: reason ? () => tellReason(reason) : press,
  };
}

/**
 * A button for an operation, with its menu of copies.
 * @param {import("./main.js").View} view
 * @param {Doing} doing
 */
export function actionButton(view, doing) {
  const label = doing.label || labelOf(doing.operation);
  const isDanger = effectOf(doing.operation) === "danger";
  const isForbidden = effectOf(doing.operation) !== "read" && !mayChange();
  const isUnderWay = underWay.has(keyOf(view, doing));
  const reason = isForbidden ? READ_ONLY : isUnderWay ? "It is being done." : doing.reason;
  const kind = isDanger ? "danger" : doing.kind || "plain";
  return h(
    "span.split",
    { key: `${doing.place || doing.operation} ${JSON.stringify(doing.params || {})}` },
    h(
      `button.${kind}`,
      {
        type: "button",
        ...refusalOf(reason, () => perform(view, doing)),
        "data-operation": doing.operation,
        "aria-busy": isUnderWay ? "true" : null,
      },
      label,
    ),
    menuButton(`Copy “${label}” as a command`, () =>
      copies(doing.operation, doing.params || {}, view.node),
    ),
  );
}

/** Do it: ask if it is dangerous or if something must be said, then say what came of it. */
async function perform(view, doing) {
  const { operation } = doing;
  const isDanger = effectOf(operation) === "danger";
  let params = doing.params || {};
  if (isDanger || doing.schema) {
    const values = await ask({
      title: doing.title || `${labelOf(operation)}?`,
      text: doing.text,
      schema: doing.schema,
      initial: doing.initial,
      confirm: doing.confirm || labelOf(operation),
      isDanger,
      copies: (said) => copies(operation, { ...doing.params, ...said }, view.node),
    });
    if (values === null) return;
    params = { ...params, ...values };
  }
  const key = keyOf(view, doing);
  underWay.add(key);
  view.update();
  try {
    const result = await call(operation, params, { node: view.node });
    const said = doing.says ? doing.says(result) : "";
    tell(`${doing.title?.replace(/\?$/, "") || doing.label || labelOf(operation)}: done`, said);
    doing.done?.(result, params);
  } catch (error) {
    tellProblem(error);
  } finally {
    underWay.delete(key);
  }
  view.update();
}
