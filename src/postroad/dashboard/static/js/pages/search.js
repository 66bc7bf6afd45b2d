// Whatever has an id or a name, found by it.

import { h } from "../dom.js";
import { badge, empty, heading, shown } from "../pieces.js";
import { link, linkTo } from "../router.js";
import { tableOf } from "../table.js";

const SHOWN = 50;

export default {
  path: "search",
  title: "Search",
  watches: (view) => {
    const { text } = view.route.query;
    return text ? [["search.find", { text, limit: SHOWN }]] : [];
  },
  draw: (view) => {
    const { text } = view.route.query;
    if (!text) return [heading("Search"), empty("Type an id or a name above.")];
    const params = { text, limit: SHOWN };
    return [
      heading(`Search: ${text}`),
      shown(view, "search.find", params, (rows) =>
        tableOf(view, {
          name: "found",
          operation: "search.find",
          params,
          rows,
          key: (row) => `${row.kind} ${row.id} ${row.title}`,
          columns: [
            { label: "Kind", value: (row) => row.kind, show: (row) => badge(row.kind, "quiet") },
            {
              label: "What",
              value: (row) => row.title,
              show: (row) => h("a", { href: addressOf(row) }, row.title),
            },
            { label: "Id", value: (row) => row.id, show: (row) => h("code", null, row.id) },
          ],
          empty: empty(
            `Nothing is called “${text}”.`,
            "Ids of nodes, cells, queues, messages, dead letters, flows, services, actions, jobs and traces are known.",
            "postroad search find ID",
          ),
        }),
      ),
    ];
  },
};

/** Where a find is shown; a message is in its queue, and a definition leads to its flows. */
function addressOf(hit) {
  if (hit.kind === "message" && hit.within) return link("queues", [hit.within], { id: hit.id });
  if (hit.kind === "flow definition") return link("flows", [], { name: hit.id });
  return linkTo(hit.noun, hit.id);
}
