// The same operation for people in a terminal: as a command, and for curl.

import { requestOf } from "./api.js";
import { requiredOf } from "./actions.js";

/**
 * Where the command line says things otherwise than by required arguments and options.
 * @typedef {object} Spelling
 * @property {string[]} [positional] optional parameters that are arguments nevertheless
 * @property {string[]} [pairs] those that are said as `name=value`, besides headers
 * @property {boolean} [isWhole] that nothing was chosen must be said, by `--all`
 */

/** @type {Record<string, Spelling>} */
const SPELLINGS = {
  "dlq.count": { positional: ["ids"] },
  "dlq.drop": { positional: ["ids"], isWhole: true },
  "dlq.retry": { positional: ["ids"], isWhole: true },
  "flow.begin": { positional: ["arguments"], pairs: ["arguments"] },
  "flow.signal": { positional: ["value"] },
  "job.count": { positional: ["id"] },
  "job.drop": { positional: ["id"], isWhole: true },
  "job.retry": { positional: ["id"], isWhole: true },
  "service.actions": { positional: ["service"] },
  "service.call": { positional: ["params"], pairs: ["params"] },
  "service.emit": { positional: ["data"], pairs: ["data"] },
};
const PAIRS = ["headers"];

/** For a shell with curl; the token is the reader's own. */
export function asCurl(operation, params, node) {
  const { url, method, body } = requestOf(operation, params, node);
  const words = ["curl", "-H", '"Authorization: Bearer $POSTROAD_TOKEN"'];
  if (method === "POST") {
    words.push("-H", "'Content-Type: application/json'", "-d", quote(body));
  }
  return [...words, quote(`${location.origin}${url}`)].join(" ");
}

/** For the `postroad` command. */
export function asCommand(operation, params, node) {
  const spelling = SPELLINGS[operation] || {};
  const positional = [...requiredOf(operation), ...(spelling.positional || [])];
  const pairs = [...(spelling.pairs || []), ...PAIRS];
  const said = Object.entries(params).filter(([, value]) => value !== undefined && value !== null);
  const wordsOf = (name, value) => {
    if (pairs.includes(name) && typeof value === "object") {
      return Object.entries(value).map(([key, it]) => `${key}=${asValue(it)}`);
    }
    return (Array.isArray(value) ? value : [value]).map((it) =>
      typeof it === "object" ? JSON.stringify(it) : String(it),
    );
  };
  const places = positional
    .filter((name) => params[name] !== undefined && params[name] !== null)
    .flatMap((name) => wordsOf(name, params[name]));
  const options = said
    .filter(([name]) => !positional.includes(name))
    .flatMap(([name, value]) => optionWords(name, value, wordsOf));
  const chosen = said.filter(([name]) => !requiredOf(operation).includes(name));
  if (spelling.isWhole && chosen.length === 0) options.push("--all");
  if (node) options.push("--node", node);
  const words = places.some((it) => it.startsWith("-"))
    ? [...options, "--", ...places]
    : [...places, ...options];
  return ["postroad", ...operation.split("."), ...words.map(quote)].join(" ");
}

function optionWords(name, value, wordsOf) {
  const option = `--${name.replaceAll("_", "-")}`;
  if (typeof value === "boolean") return value ? [option] : [];
  return wordsOf(name, value).flatMap((it) => [option, it]);
}

/** A text that would be read as something else is written as JSON. */
function asValue(value) {
  if (typeof value !== "string") return JSON.stringify(value);
  try {
    JSON.parse(value);
    return JSON.stringify(value);
  } catch {
    return value;
  }
}

function quote(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
