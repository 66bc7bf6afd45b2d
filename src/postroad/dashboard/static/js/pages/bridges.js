// Bridges: mail on its way to other nodes, and what keeps it.

import { actionButton } from "../act.js";
import { h } from "../dom.js";
import { count, plural, span } from "../format.js";
import { badge, empty, facts, heading, panel, shown } from "../pieces.js";
import { link } from "../router.js";
import { numberColumn, tableOf } from "../table.js";
import { letterTable } from "./letters.js";

const PEEKED = 50;

export default {
  path: "bridges",
  title: "Bridges",
  watches: (view) => {
    const [peer] = view.route.args;
    if (peer === undefined) return [["bridge.ls", {}]];
    return [
      ["bridge.show", { peer }],
      ["bridge.peek", { peer, limit: PEEKED }],
    ];
  },
  draw: (view) => {
    const [peer] = view.route.args;
    return peer === undefined ? listPage(view) : bridgePage(view, peer);
  },
};

function listPage(view) {
  return [
    heading("Bridges"),
    shown(view, "bridge.ls", {}, (rows) =>
      tableOf(view, {
        name: "bridges",
        operation: "bridge.ls",
        rows,
        key: (row) => row.peer,
        columns: [
          {
            label: "Peer",
            value: (row) => row.peer,
            show: (row) => h("a", { href: link("bridges", [row.peer]) }, row.peer),
          },
          { label: "Phase", value: (row) => row.phase, show: phaseOf },
          numberColumn("Waiting", (row) => row.depth),
          numberColumn("Oldest", (row) => row.oldest_age_s, span, { isTime: true }),
          numberColumn("Sent", (row) => row.sent, count, { isWide: true }),
          {
            label: "Trouble",
            value: (row) => row.trouble,
            show: (row) => row.trouble && h("span.wrong", null, row.trouble),
          },
          { label: "", value: () => "", show: (row) => pauseButton(view, row) },
        ],
        empty: empty(
          "No mail was ever posted to another node.",
          "A bridge is made with the first message to a peer, and carries it there whatever happens.",
          `postroad queue post orders '{"item": "tea"}' --peer beta`,
        ),
      }),
    ),
  ];
}

function phaseOf(row) {
  if (row.is_paused) return badge("paused", "warning");
  return badge(row.phase, row.trouble ? "failing" : row.phase === "away" ? "warning" : "ok");
}

function pauseButton(view, row) {
  return actionButton(view, {
    operation: row.is_paused ? "bridge.resume" : "bridge.pause",
    place: "pause",
    params: { peer: row.peer },
    says: (result) => `the bridge to ${result.peer} is ${result.phase}`,
  });
}

function bridgePage(view, peer) {
  return [
    heading(`Bridge to ${peer}`, h("a", { href: link("bridges") }, "all bridges")),
    shown(view, "bridge.show", { peer }, (bridge) =>
      panel(
        "Bridge",
        facts([
          ["Phase", phaseOf(bridge)],
          ["Address", bridge.target ? h("code", null, bridge.target) : unknownPeer(bridge)],
          ["Waiting", count(bridge.depth)],
          ["Oldest", span(bridge.oldest_age_s)],
          ["Posted", count(bridge.posted)],
          ["Sent", count(bridge.sent)],
          ["Epoch", bridge.epoch],
          ["Trouble", bridge.trouble ? h("span.wrong", null, bridge.trouble) : "none"],
        ]),
        h("div.buttons", null, pauseButton(view, bridge), dangers(view, bridge)),
      ),
    ),
    panel(
      "Messages on the way",
      shown(view, "bridge.peek", { peer, limit: PEEKED }, (rows) =>
        letterTable(view, {
          rows,
          operation: "bridge.peek",
          params: { peer, limit: PEEKED },
          nothing: ["Nothing waits.", `${peer} has everything that was posted to it.`],
        }),
      ),
    ),
  ];
}

function unknownPeer({ peer }) {
  return `unknown: no member is called ${peer}; mail is kept until one is`;
}

function dangers(view, { peer, depth }) {
  return [
    actionButton(view, {
      operation: "bridge.purge",
      label: "Purge…",
      params: { peer },
      title: `Purge the mail for ${peer}?`,
      text: `${plural(depth, "message is", "messages are")} thrown away; what is on its way may still arrive.`,
      reason: depth === 0 ? "Nothing waits for it." : "",
      confirm: `Purge ${plural(depth, "message")}`,
      says: (result) => `${plural(result.count, "message")} thrown away`,
    }),
    actionButton(view, {
      operation: "bridge.reset",
      label: "Reset…",
      params: { peer },
      title: `Begin anew with ${peer}?`,
      text: `Only after a store was restored from a backup: ${plural(depth, "message is", "messages are")} sent as if ${peer} had never heard of it.`,
      confirm: `Reset and send ${plural(depth, "message")}`,
      says: (result) => `a new beginning, epoch ${result.epoch}`,
    }),
  ];
}
