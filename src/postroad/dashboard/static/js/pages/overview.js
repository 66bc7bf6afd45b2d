// What is wrong, how fast it goes, and how much there is of everything.

import { copies } from "../act.js";
import { sparkline } from "../chart.js";
import { h } from "../dom.js";
import { bytes, count, plural, rate, since } from "../format.js";
import { seriesOf } from "../history.js";
import { menuButton } from "../menu.js";
import { badge, codeLine, empty, heading, panel, shown } from "../pieces.js";
import { link, linkTo } from "../router.js";

const FAILURES = "failed_per_s";
const RATES = [
  ["requests_per_s", "Requests", "nodes"],
  ["posted_per_s", "Posted", "bridges"],
  ["handled_per_s", "Handled", "queues"],
  [FAILURES, "Failed attempts", "queues"],
];
const ACTIVE = ["service.ls", "flow.definitions"];
const FLOW_KINDS = {
  running: "ok",
  done: "quiet",
  retrying: "warning",
  parked: "failing",
  failed: "failing",
  killed: "warning",
  paused: "warning",
};

export default {
  path: "overview",
  title: "Overview",
  mark: (view) => {
    const troubles = view.overview?.troubles || [];
    if (troubles.length === 0) return null;
    const kind = troubles.some((it) => it.severity === "failing") ? "failing" : "warning";
    return { kind, text: String(troubles.length), title: plural(troubles.length, "trouble") };
  },
  watches: () => ACTIVE.map((it) => [it, {}]),
  draw: (view) => [
    heading(
      "Overview",
      h("span.space"),
      menuButton("Copy the overview as a command", () => copies("node.overview", {}, view.node)),
    ),
    shown(view, "node.overview", {}, (overview) => [
      troubles(overview.troubles),
      isIdle(view, overview) &&
        empty(
          "This node runs no program yet.",
          "A program brings services, consumers of messages, flows and cells. This writes a small one that works; “postroad dev” in its directory runs it.",
          "postroad new shop",
        ),
      h(
        "div.tiles",
        null,
        RATES.map((it) => rateTile(view, overview, it)),
        depthTiles(view, overview),
      ),
      h("div.columns", null, nodeCard(overview), flowCard(overview.flows)),
    ]),
  ],
};

/** Whether nothing was ever asked of it, nor could be. */
function isIdle(view, overview) {
  const offered = [...ACTIVE.map((it) => view.get(it, {})?.length ?? 1), overview.waiting];
  return offered.every((it) => it === 0);
}

function troubles(all) {
  if (all.length === 0) {
    return h(
      "div.notice.ok",
      { role: "status" },
      h("strong", null, "All is well."),
      " Nothing waits too long, nothing died, everybody answers.",
    );
  }
  return h(
    "ul.troubles",
    { "aria-label": "Troubles" },
    all.map((it) =>
      h(
        `li.trouble.${it.severity}`,
        { key: `${it.title} ${it.id}` },
        badge(it.severity),
        h("div.what", null, h("strong", null, it.title), h("span.muted", null, it.detail)),
        it.command && codeLine(it.command),
        h("a.button", { href: whereTo(it) }, "Go there"),
      ),
    ),
  );
}

function whereTo(it) {
  const status = /--status (\w+)/.exec(it.command)?.[1];
  return it.noun === "flow" && status ? link("flows", [], { status }) : linkTo(it.noun, it.id);
}

function rateTile(view, overview, [field, label, page]) {
  return h(
    "a.tile",
    { href: link(page), class: field === FAILURES && overview[field] >= 0.05 ? "warning" : null },
    h("span.name", null, label),
    h("b", null, rate(overview[field])),
    sparkline(seriesOf(`overview ${view.node || ""}`, field), label),
  );
}

function depthTiles(view, overview) {
  const history = (field, label) =>
    sparkline(seriesOf(`overview ${view.node || ""}`, field), label);
  return [
    h(
      "a.tile",
      { href: link("queues") },
      h("span.name", null, "Waiting"),
      h("b", null, count(overview.waiting)),
      history("waiting", "Waiting messages"),
    ),
    h(
      "a.tile",
      { href: link("dead"), class: overview.dead > 0 ? "failing" : null },
      h("span.name", null, "Dead letters"),
      h("b", null, count(overview.dead)),
      history("dead", "Dead letters"),
    ),
    h(
      "a.tile",
      { href: link("nodes"), class: overview.suspects > 0 ? "warning" : null },
      h("span.name", null, "Members"),
      h("b", null, count(overview.members)),
      h(
        "small.muted",
        null,
        overview.suspects > 0 ? `${overview.suspects} suspected` : "all answer",
      ),
    ),
    h(
      "a.tile",
      { href: link("pipelines") },
      h("span.name", null, "Pipelines"),
      h("b", null, count(overview.jobs)),
      h("small.muted", null, "jobs running"),
    ),
  ];
}

function nodeCard({ node }) {
  const facts = [
    ["State", badge(node.state)],
    ["Address", h("code", null, node.address)],
    ["Up", since(node.started_at)],
    ["Version", `${node.version}, Python ${node.python}`],
    ["Layers", node.layers.join(", ")],
    ["Memory", bytes(node.memory_bytes)],
    ["Processor", `${Math.round((node.cpu_share || 0) * 100)} %`],
    ["Encrypted", node.is_secure ? "yes" : "no"],
  ];
  return panel(
    node.name,
    h(
      "dl.facts",
      null,
      facts.map(([name, value]) => [h("dt", null, name), h("dd", null, value)]),
    ),
    h("p", null, h("a", { href: link("nodes", [node.name]) }, "Health, configuration, logs")),
  );
}

function flowCard(flows) {
  const statuses = Object.entries(flows).filter(([, amount]) => amount > 0);
  const total = statuses.reduce((sum, [, amount]) => sum + amount, 0);
  return panel(
    "Flows",
    total === 0
      ? h("p.muted", null, "None yet. ", h("a", { href: link("flows", [], { tab: "definitions" }) }, "Begin one"))
      : [
          h(
            "div.share",
            { "aria-hidden": "true" },
            statuses.map(([status, amount]) =>
              h(`i.${FLOW_KINDS[status] || "quiet"}`, { style: { "flex-grow": amount } }),
            ),
          ),
          h(
            "ul.counts",
            null,
            statuses.map(([status, amount]) =>
              h(
                "li",
                { key: status },
                h(
                  "a",
                  { href: link("flows", [], { status }) },
                  badge(status, FLOW_KINDS[status]),
                  h("b", null, count(amount)),
                ),
              ),
            ),
          ),
        ],
  );
}
