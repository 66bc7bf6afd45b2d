// Messages that wait, shown without taking them.

import { h } from "../dom.js";
import { bytes, span, time } from "../format.js";
import { empty, folded, identity } from "../pieces.js";
import { tableOf } from "../table.js";

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
        show: (row) => folded(row.body),
      },
      { label: "Read as", value: (row) => row.encoding, isWide: true },
      {
        label: "Headers",
        value: (row) => row.headers,
        show: (row) => headersOf(row),
        isWide: true,
      },
      {
        label: "Due",
        value: (row) => row.due_at,
        show: (row) => row.due_at && `in ${span(Math.max(0, row.due_at - Date.now() / 1000))}`,
        isWide: true,
      },
      { label: "Size", value: (row) => row.size, show: (row) => bytes(row.size), isNumber: true },
    ],
    empty: empty(...nothing),
  });
}

/** Headers in one line that opens. */
export function headersOf(row) {
  const headers = row.headers || {};
  return Object.keys(headers).length === 0 ? h("span.muted", null, "–") : folded(headers, 28);
}
