// Messages that wait, shown without taking them.

import { h } from "../dom.js";
import { bytes, count, time, until } from "../format.js";
import { badge, code, empty, folded, identity } from "../pieces.js";
import { tableOf } from "../table.js";

/** How many characters of a body the node shows; the last one may be cut. */
const SHOWN_MAX = 16 * 1024;
const CHARACTER_MAX = 4;

/** A table of messages, of a queue or of a bridge. */
export function letterTable(view, { rows, operation, params, nothing }) {
  return tableOf(view, {
    name: "messages",
    operation,
    params,
    rows,
    key: (row) => row.id,
    columns: [
      { label: "Id", value: (row) => row.id, show: (row) => identity(row.id) },
      { label: "Posted", value: (row) => row.posted_at, show: (row) => time(row.posted_at) },
      { label: "Key", value: (row) => row.key, isWide: true },
      {
        label: "Body",
        value: (row) => row.body,
        show: (row) => [folded(row.body), cutMark(row)],
      },
      { label: "State", value: (row) => row.failures, show: stateOf },
      {
        label: "Headers",
        value: (row) => row.headers,
        show: (row) => headersOf(row),
        isWide: true,
      },
      { label: "Size", value: (row) => row.size, show: sizeOf, isNumber: true, isWide: true },
    ],
    empty: empty(...nothing),
  });
}

function sizeOf(row) {
  return [bytes(row.size), h("span.muted", null, ` ${row.encoding}`)];
}

/** How often its handler failed, with what, and on what terms it waits. */
function stateOf(row) {
  const terms = termsOf(row);
  if (row.failures === 0) return terms || h("span.muted", null, "–");
  const times = row.failures === 1 ? "once" : `${count(row.failures)} times`;
  return [
    badge(`failed ${times}`, "warning"),
    terms && h("span.muted", null, ` ${terms}`),
    row.error && h("div.wrong", null, folded(row.error, 50)),
  ];
}

/** When it is tried, how long it is good for, and whether it goes before others. */
function termsOf(row) {
  const said = [
    row.is_held && "waits for an earlier one of its key",
    row.failures > 0 && row.next_try_at && `next ${until(row.next_try_at)}`,
    row.failures === 0 && row.due_at && `due ${until(row.due_at)}`,
    row.expires_at && `expires ${until(row.expires_at)}`,
    row.priority !== 0 && `priority ${row.priority}`,
  ];
  return said.filter(Boolean).join(", ");
}

/** The body, or as much of it as the node shows. */
export function bodyOf(row) {
  return [code(row.body), cutMark(row)];
}

function cutMark(row) {
  const unit = row.encoding === "hex" ? 2 : 1;
  const isFull = row.body.length >= SHOWN_MAX - CHARACTER_MAX;
  const isCut = isFull && (row.encoding === "msgpack" || row.size > row.body.length / unit);
  return isCut && h("p.muted", null, `This is the beginning; all of it is ${bytes(row.size)}.`);
}

/** Headers in one line that opens. */
export function headersOf(row) {
  const headers = row.headers || {};
  return Object.keys(headers).length === 0 ? h("span.muted", null, "–") : folded(headers, 20);
}
