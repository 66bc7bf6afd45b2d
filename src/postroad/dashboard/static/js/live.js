// What changes at the node, as it changes: server-sent events read by fetch, because only fetch
// can carry the token in a header.

import { Problem, openWatch } from "./api.js";
import { parseJson } from "./json.js";

const SILENCE_MS = 40_000;
const DELAYS_MS = [300, 700, 1_500, 3_000, 5_000];

/** One stream of changes at a time, opened again whenever it breaks. */
export class Live {
  /**
   * @param {object} told
   * @param {(operation: string, result: any) => void} told.onResult
   * @param {(operation: string, problem: Problem) => void} told.onProblem one operation failed
   * @param {(state: "connecting" | "live" | "lost") => void} told.onState
   */
  constructor({ onResult, onProblem, onState }) {
    this.onResult = onResult;
    this.onProblem = onProblem;
    this.onState = onState;
    this.wanted = null;
    this.controller = null;
    this.failures = 0;
    document.addEventListener("visibilitychange", () => this.#onVisibility());
  }

  /**
   * Watch these from now on, and nothing else.
   * @param {[string, object][]} operations names and parameters
   * @param {string | undefined} node
   */
  watch(operations, node) {
    this.wanted = { operations, node };
    this.failures = 0;
    this.#restart();
  }

  stop() {
    this.wanted = null;
    this.controller?.abort();
  }

  /** Try again now. */
  retry() {
    this.failures = 0;
    this.#restart();
  }

  // A tab that nobody sees asks nothing of the node, and keeps no connection from other tabs.
  #onVisibility() {
    if (document.hidden) this.controller?.abort();
    else if (this.wanted !== null) this.#restart();
  }

  #restart() {
    this.controller?.abort();
    if (this.wanted === null || document.hidden) return;
    const controller = new AbortController();
    this.controller = controller;
    this.#run(controller, this.wanted);
  }

  async #run(controller, { operations, node }) {
    const isCurrent = () => controller === this.controller && !controller.signal.aborted;
    this.onState("connecting");
    try {
      const response = await openWatch(operations, node, controller.signal);
      this.failures = 0;
      this.onState("live");
      await this.#read(response.body, controller);
    } catch (error) {
      if (!isCurrent()) return;
      if (error instanceof Problem && error.status === 401) return;
      if (error instanceof Problem && error.status !== 0) this.onProblem(null, error);
    }
    if (!isCurrent()) return;
    this.onState("lost");
    const delay = DELAYS_MS[Math.min(this.failures, DELAYS_MS.length - 1)];
    this.failures += 1;
    setTimeout(() => isCurrent() && this.#restart(), delay);
  }

  async #read(body, controller) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    let silence;
    const listen = () => {
      clearTimeout(silence);
      silence = setTimeout(() => reader.cancel().catch(() => {}), SILENCE_MS);
    };
    try {
      listen();
      for (;;) {
        const { value, done } = await reader.read();
        if (done || controller.signal.aborted) return;
        listen();
        text = this.#takeEvents((text + value).replaceAll("\r\n", "\n"));
      }
    } finally {
      clearTimeout(silence);
    }
  }

  /** Tell the whole events in a text; what is left is the beginning of the next. */
  #takeEvents(text) {
    const events = text.split("\n\n");
    const rest = events.pop();
    for (const event of events) {
      let name = "message";
      const data = [];
      for (const line of event.split("\n")) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      }
      if (data.length > 0) this.#tell(name, parseJson(data.join("\n")));
    }
    return rest;
  }

  #tell(name, value) {
    if (name === "problem") this.onProblem(value.operation, new Problem(value.status, value));
    else this.onResult(name, value);
  }
}
