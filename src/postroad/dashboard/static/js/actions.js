// Every operation of the node that this dashboard knows: what it does to the node, which parameters
// must be said, and, for those that change something, the page and the words of its button.
// A test compares it with the node's own table.

/**
 * @typedef {object} Action
 * @property {"read" | "change" | "danger"} effect
 * @property {string[]} required in the order of the command line
 * @property {string} [page] where its button is
 * @property {string} [label] what the button says
 */

const read = (...required) => ({ effect: "read", required });
const change = (page, label, ...required) => ({ effect: "change", required, page, label });
const danger = (page, label, ...required) => ({ effect: "danger", required, page, label });

/** @type {Record<string, Action>} */
export const ACTIONS = {
  "bridge.ls": read(),
  "bridge.pause": change("bridges", "Pause", "peer"),
  "bridge.peek": read("peer"),
  "bridge.purge": danger("bridges", "Purge", "peer"),
  "bridge.reset": danger("bridges", "Reset", "peer"),
  "bridge.resume": change("bridges", "Resume", "peer"),
  "bridge.show": read("peer"),
  "cells.domains": read(),
  "cells.drain": change("cells", "Drain", "cell"),
  "cells.kill": danger("cells", "Kill", "cell"),
  "cells.ping": read("path"),
  "cells.ps": read(),
  "cells.routes": read(),
  "cells.run": change("cells", "Run", "cell", "command"),
  "cells.traceroute": read("path"),
  "cluster.ls": read(),
  "cluster.map": read(),
  "cluster.show": read("member"),
  "dlq.count": read(),
  "dlq.drop": danger("dead", "Drop"),
  "dlq.groups": read(),
  "dlq.ls": read(),
  "dlq.retry": change("dead", "Retry"),
  "dlq.show": read("id"),
  "flow.begin": change("flows", "Begin", "flow"),
  "flow.cancel": change("flows", "Cancel", "id"),
  "flow.counts": read(),
  "flow.definitions": read(),
  "flow.drain": change("flows", "Drain"),
  "flow.fork": change("flows", "Fork from here", "id", "step"),
  "flow.history": read("id"),
  "flow.kill": danger("flows", "Kill", "id"),
  "flow.ls": read(),
  "flow.pause": change("flows", "Pause", "id"),
  "flow.pause-schedule": change("flows", "Pause", "name"),
  "flow.query": read("id", "name"),
  "flow.record": read("id"),
  "flow.result": read("id"),
  "flow.resume": change("flows", "Resume", "id"),
  "flow.resume-schedule": change("flows", "Resume", "name"),
  "flow.retry": change("flows", "Retry", "id"),
  "flow.run-schedule": change("flows", "Run now", "name"),
  "flow.schedules": read(),
  "flow.show": read("id"),
  "flow.signal": change("flows", "Signal", "id", "name"),
  "flow.undrain": change("flows", "Undrain"),
  "flow.unschedule": danger("flows", "Remove", "name"),
  "job.count": read("job"),
  "job.dead-letters": read("job"),
  "job.drop": danger("pipelines", "Drop", "job"),
  "job.explain": read("job"),
  "job.ls": read(),
  "job.retry": change("pipelines", "Retry", "job"),
  "job.show": read("job"),
  "job.stop": danger("pipelines", "Stop", "job"),
  "job.submit": change("pipelines", "Start", "job"),
  "job.waiting": read("job"),
  "job.windows": read("job"),
  "node.config": read(),
  "node.drain": change("nodes", "Drain"),
  "node.health": read(),
  "node.logs": read(),
  "node.overview": read(),
  "node.show": read(),
  "node.stop": danger("nodes", "Stop"),
  "queue.ls": read(),
  "queue.move": danger("queues", "Move", "queue", "to"),
  "queue.pause": change("queues", "Pause", "queue"),
  "queue.peek": read("queue"),
  "queue.post": change("queues", "Post a message", "queue", "body"),
  "queue.purge": danger("queues", "Purge", "queue"),
  "queue.resume": change("queues", "Resume", "queue"),
  "queue.schema": read("queue"),
  "queue.show": read("queue"),
  "search.find": read("text"),
  "service.actions": read(),
  "service.call": change("services", "Call", "action"),
  "service.emit": change("services", "Emit", "event"),
  "service.events": read(),
  "service.ls": read(),
  "service.show": read("service"),
  "trace.ls": read(),
  "trace.show": read("id"),
};

/** @returns {"read" | "change" | "danger"} */
export function effectOf(operation) {
  return ACTIONS[operation]?.effect ?? "read";
}

export function requiredOf(operation) {
  return ACTIONS[operation]?.required ?? [];
}

export function labelOf(operation) {
  return ACTIONS[operation]?.label ?? operation;
}
