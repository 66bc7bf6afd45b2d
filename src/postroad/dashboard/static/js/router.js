// Deep links: `#/queues/orders?node=beta` names a page, what it is about, and the node.

/**
 * @typedef {object} Route
 * @property {string} page
 * @property {string[]} args
 * @property {Record<string, string>} query
 */

/** @returns {Route} */
export function readRoute(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [page, ...args] = path.split("/").filter(Boolean).map(decode);
  return { page: page || "overview", args, query: Object.fromEntries(new URLSearchParams(query)) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a page about the same node as this one. */
export function link(page, args = [], query = {}) {
  const node = readRoute().query.node;
  return addressOf({ page, args, query: node ? { node, ...query } : query });
}

/** @param {Route} route */
export function addressOf(route) {
  const said = Object.entries(route.query).filter(([, value]) => value !== "" && value != null);
  const query = new URLSearchParams(said).toString();
  const path = [route.page, ...route.args].map(encodeURIComponent).join("/");
  return `#/${path}${query ? `?${query}` : ""}`;
}

/** Change what the address says besides the page, without a step in the history. */
export function replaceQuery(query) {
  const route = readRoute();
  history.replaceState(history.state, "", addressOf({ ...route, query: { ...route.query, ...query } }));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

const PAGE_OF_NOUN = {
  node: "nodes",
  cluster: "nodes",
  member: "nodes",
  cells: "cells",
  cell: "cells",
  domain: "cells",
  service: "services",
  action: "services",
  event: "services",
  queue: "queues",
  letter: "queues",
  message: "queues",
  dlq: "dead",
  dead: "dead",
  bridge: "bridges",
  peer: "bridges",
  flow: "flows",
  job: "pipelines",
  trace: "traces",
};

/** Where something is shown that the node speaks of by noun and id. */
export function linkTo(noun, id) {
  const page = PAGE_OF_NOUN[noun];
  if (page === undefined) return link("overview");
  return link(page, id ? [id] : []);
}
