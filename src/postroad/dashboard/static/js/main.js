// The frame: it reads the address, watches what the page wants to see, and draws.

import { call, onAnswers, Problem } from "./api.js";
import { now } from "./clock.js";
import { h, render } from "./dom.js";
import { sample } from "./history.js";
import { Live } from "./live.js";
import { startMenus } from "./menu.js";
import bridges from "./pages/bridges.js";
import cells from "./pages/cells.js";
import dead from "./pages/dead.js";
import flows from "./pages/flows.js";
import map from "./pages/map.js";
import nodes from "./pages/nodes.js";
import overview from "./pages/overview.js";
import pipelines from "./pages/pipelines.js";
import queues from "./pages/queues.js";
import search from "./pages/search.js";
import services from "./pages/services.js";
import traces from "./pages/traces.js";
import { empty, trouble } from "./pieces.js";
import { link, readRoute } from "./router.js";
import { getToken, setToken, showTheme, takeTokenFromAddress } from "./session.js";
import { login, shell } from "./shell.js";
import { keepPlaces, showPlace, stateOf } from "./steps.js";

const PAGES = [
  overview,
  map,
  nodes,
  services,
  queues,
  dead,
  bridges,
  flows,
  pipelines,
  cells,
  traces,
];
/** What the frame itself shows, whatever the page. */
const ALWAYS = [
  ["node.overview", {}],
  ["cluster.ls", {}],
  ["job.ls", {}],
];
const PATIENCE_MS = 1_000;
const REMEMBERED = 60;

/**
 * What a page gets to draw itself.
 * @typedef {object} View
 * @property {import("./router.js").Route} route
 * @property {string | undefined} node whom it is about, if not the node that serves this page
 * @property {any} home the node that serves this page
 * @property {any} overview
 * @property {any[]} members
 * @property {Record<string, any>} state what the reader did on this page at this step
 * @property {"connecting" | "live" | "lost"} connection
 * @property {number | null} lostAt since when it is lost, by the clock of the node
 * @property {(operation: string, params?: object) => any} get the newest result, if there is one
 * @property {(operation: string, params?: object) => Problem | undefined} problem
 * @property {() => void} update draw again, and watch what is wanted now
 * @property {() => void} reconnect
 */

/**
 * @typedef {object} Page
 * @property {string} path
 * @property {string} title
 * @property {(view: View) => [string, object][]} watches
 * @property {(view: View) => any} draw
 * @property {(view: View) => {kind: string, text: string, title: string} | null} [mark]
 */

const results = new Map();
const problems = new Map();
let home = null;
let watched = "";
let connection = "connecting";
let lostAt = null;
let impatience = 0;
let isDrawing = false;
let pageInSight = "";
let entry = null;

const live = new Live({
  onResult: (operation, result) => {
    const key = watchedKey(operation);
    if (key === undefined) return;
    remember(key, result);
    problems.delete(key);
    update();
  },
  onProblem: (operation, problem) => {
    for (const key of operation === null ? currentKeys() : [watchedKey(operation)]) {
      problems.set(key, problem);
    }
    update();
  },
  onState: (next) => {
    clearTimeout(impatience);
    // A change of pages opens a new stream: no news unless it takes long.
    if (next === "connecting" && connection === "live") {
      impatience = setTimeout(() => setConnection("connecting"), PATIENCE_MS);
    } else if (!(next === "connecting" && connection === "lost")) {
      setConnection(next);
    }
  },
});

/** Keep a result, so that a page that is seen again is there at once; the oldest go. */
function remember(key, result) {
  results.delete(key);
  results.set(key, result);
  if (results.size <= REMEMBERED) return;
  const current = new Set(currentKeys());
  const oldest = [...results.keys()].find((it) => !current.has(it));
  results.delete(oldest);
}

function setConnection(next) {
  connection = next;
  lostAt = next === "lost" ? (lostAt ?? now()) : null;
  update();
}

function keyOf(node, operation, params) {
  return JSON.stringify([node || "", operation, params || {}]);
}

function currentKeys() {
  return (live.wanted?.operations || []).map(([operation, params]) =>
    keyOf(live.wanted.node, operation, params),
  );
}

function watchedKey(operation) {
  const found = live.wanted?.operations.find(([name]) => name === operation);
  return found && keyOf(live.wanted.node, ...found);
}

/** @returns {View} */
function viewOf(route, state = {}) {
  const { node } = route.query;
  const get = (operation, params) => results.get(keyOf(node, operation, params));
  return {
    route,
    node,
    home,
    overview: get("node.overview"),
    members: get("cluster.ls") || results.get(keyOf(undefined, "cluster.ls")) || [],
    state,
    connection,
    lostAt,
    get,
    problem: (operation, params) => problems.get(keyOf(node, operation, params)),
    update,
    reconnect: () => live.retry(),
  };
}

/** Draw soon, once for everything that happened meanwhile. */
function update() {
  if (isDrawing) return;
  isDrawing = true;
  queueMicrotask(() => {
    isDrawing = false;
    if (entry === null) draw();
    else drawLogin();
  });
}

function pageOf(route) {
  return [...PAGES, search].find((it) => it.path === route.page);
}

function draw() {
  const route = readRoute();
  const place = JSON.stringify([route.query.node, route.page, route.args]);
  const view = viewOf(route, stateOf(place));
  const page = pageOf(route);
  watch(view, page);
  document.title = titleOf(view, page);
  render(document.getElementById("shell"), shell(view, PAGES));
  render(
    document.getElementById("main"),
    h("div.page", { key: place, "data-page": route.page }, content(view, page)),
  );
  showPageLink(route.page);
}

/** What a page shows; if it cannot make sense of the node, the frame around it still works. */
function content(view, page) {
  if (page === undefined) return lostPage(view.route);
  try {
    return page.draw(view);
  } catch (error) {
    console.error(error);
    return trouble({
      title: "This page cannot be drawn",
      message: String(error),
      next: "look at another page, or use the command: postroad node overview",
    });
  }
}

function watch(view, page) {
  const wanted = [...ALWAYS];
  for (const it of page ? page.watches(view) : []) {
    if (!wanted.some(([operation]) => operation === it[0])) wanted.push(it);
  }
  const key = JSON.stringify([view.node, wanted]);
  if (key === watched) return;
  watched = key;
  live.watch(wanted, view.node);
}

function titleOf(view, page) {
  const node = view.node || home?.name || "…";
  const troubles = view.overview?.troubles.length || 0;
  const mark = troubles > 0 ? `(${troubles}) ` : "";
  return `${mark}${home?.cluster ?? "…"}/${node} - ${page?.title ?? "Not found"} - Postroad`;
}

function lostPage(route) {
  return [
    empty(`There is no page “${route.page}”.`, "The address may be old or mistyped."),
    h("p", null, h("a", { href: link("overview") }, "To the overview")),
  ];
}

// Coming in.

function askForToken() {
  if (entry !== null) return;
  live.stop();
  watched = "";
  entry = { problem: null, draw: drawLogin, isFirst: true };
  update();
}

function drawLogin() {
  document.title = "Sign in - Postroad";
  render(document.getElementById("shell"));
  render(document.getElementById("main"), login(entry, enter));
  if (entry.isFirst) document.getElementById("token").focus();
  entry.isFirst = false;
}

/** Try a token, and show the page if it opens the node. */
async function enter(token) {
  const before = entry;
  setToken(token);
  home = await call("node.show");
  if (entry === before) entry = null;
  update();
}

async function start() {
  showTheme();
  takeTokenFromAddress();
  startMenus();
  onAnswers({ unauthorized: askForToken, news: update });
  window.addEventListener("hashchange", () => {
    if (location.hash.startsWith("#token=")) {
      takeTokenFromAddress();
      location.reload();
    } else {
      update();
      queueMicrotask(showPlace);
    }
  });
  keepPlaces();
  document.addEventListener("keydown", focusSearch);
  document.querySelector(".skip").addEventListener("click", skipToContent);
  setInterval(takeSamples, 1_000);
  // Without a token, only a certificate of the browser opens a node, and that needs HTTPS.
  if (getToken() === null && location.protocol !== "https:") askForToken();
  else await begin();
}

async function begin() {
  try {
    home = await call("node.show");
    update();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 401) return;
    setConnection("lost");
    setTimeout(begin, PATIENCE_MS);
  }
}

/** Where pages are in a row that scrolls, have the current one in sight; counts make it longer. */
function showPageLink(page) {
  const here = document.querySelector("nav.pages [aria-current]");
  const wanted = `${page} ${here?.offsetLeft} ${here?.offsetWidth}`;
  if (wanted === pageInSight) return;
  pageInSight = wanted;
  here?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** The address after `#` names a page, so the link cannot lead there by itself. */
function skipToContent(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function focusSearch(event) {
  const isTyping = event.target.closest?.("input, textarea, select, dialog");
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  document.querySelector(".search input")?.focus();
}

function takeSamples() {
  if (entry !== null || document.hidden || connection !== "live") return;
  const view = viewOf(readRoute());
  if (view.overview === undefined) return;
  sample(`overview ${view.node || ""}`, view.overview);
  for (const job of view.get("job.ls") || []) {
    if (job.progress) sample(`job ${view.node || ""} ${job.name}`, job.progress);
  }
  update();
}

start();
