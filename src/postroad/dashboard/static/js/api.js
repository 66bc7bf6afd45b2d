// The HTTP API of the node: one address per operation, see `actions.js`.

import { effectOf } from "./actions.js";
import { noteTime } from "./clock.js";
import { parseJson } from "./json.js";
import { getToken, setRole } from "./session.js";

const ROOT = "/api/v1";

/** What the node has against a request, in its own words. */
export class Problem extends Error {
  constructor(status, said) {
    super(said.detail || said.title || `the node answered ${status}`);
    this.status = status;
    this.title = said.title || "It did not work";
    this.code = said.code;
    this.next = said.next;
  }
}

/** The node did not answer at all. */
class Unreachable extends Problem {
  constructor() {
    super(0, {
      title: "No answer from the node",
      detail: "It may have stopped, or the network between here and there is down.",
      next: "look whether its process runs; this page goes on by itself as soon as it answers",
    });
  }
}

const listeners = { unauthorized: () => {}, news: () => {} };

/** Have somebody told when the token is refused, and when the node is not what it seemed. */
export function onAnswers(told) {
  Object.assign(listeners, told);
}

/**
 * Do an operation.
 * @param {string} operation its name, `queue.pause`
 * @param {object} params
 * @param {{node?: string, signal?: AbortSignal}} [options]
 */
export async function call(operation, params = {}, { node, signal } = {}) {
  const { url, ...request } = requestOf(operation, params, node);
  const response = await send(url, { ...request, signal });
  const text = await response.text();
  return text === "" ? null : parseJson(text);
}

/** The stream of changes of some operations; resolves to a response whose body goes on. */
export function openWatch(operations, node, signal) {
  const query = new URLSearchParams();
  for (const [operation] of operations) query.append("operation", operation);
  for (const [operation, params] of operations) {
    for (const [name, value] of said(params)) query.append(`${operation}.${name}`, asText(value));
  }
  if (node) query.append("node", node);
  return send(`${ROOT}/watch?${query}`, { headers: { Accept: "text/event-stream" }, signal });
}

async function send(url, request) {
  const headers = { ...request.headers };
  if (getToken() !== null) headers.Authorization = `Bearer ${getToken()}`;
  let response;
  try {
    response = await fetch(url, { ...request, headers, cache: "no-store", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable();
  }
  const role = response.headers.get("Postroad-Role");
  const isOtherRole = role !== null && setRole(role);
  if (noteTime(response) || isOtherRole) listeners.news();
  if (response.ok) return response;
  const problem = new Problem(response.status, await problemOf(response));
  if (problem.status === 401) listeners.unauthorized();
  throw problem;
}

async function problemOf(response) {
  try {
    return await response.json();
  } catch {
    return { title: response.statusText };
  }
}

function said(params) {
  return Object.entries(params).filter(([, value]) => value !== undefined && value !== null);
}

function asText(value) {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** How an operation is asked for over HTTP. */
export function requestOf(operation, params, node) {
  const path = `${ROOT}/${operation.replace(".", "/")}`;
  const where = node ? [["node", node]] : [];
  if (effectOf(operation) === "read") {
    const pairs = said(params).flatMap(([name, value]) =>
      (Array.isArray(value) ? value : [value]).map((it) => [name, asText(it)]),
    );
    const query = new URLSearchParams([...pairs, ...where]).toString();
    return { url: `${path}${query ? `?${query}` : ""}`, method: "GET" };
  }
  const query = new URLSearchParams(where).toString();
  return {
    url: `${path}${query ? `?${query}` : ""}`,
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(Object.fromEntries(said(params))),
  };
}
