// Numbers, times and values as people read them.

import { now } from "./clock.js";
import { layOutJson } from "./json.js";

export { now };

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const calendar = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? "–" : number.format(value);
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return `${value < 10 ? Number(value).toFixed(1) : number.format(Math.round(value))}/s`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  let left = value;
  while (left >= 1024 && power < units.length - 1) {
    left /= 1024;
    power += 1;
  }
  return `${power === 0 ? left : left.toFixed(1)} ${units[power]}`;
}

/** A length of time, with the two largest units that matter. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.001) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** How long ago that was, by the clock of the node. */
export function since(at) {
  return at === null || at === undefined ? "–" : span(Math.max(0, now() - at));
}

/** How long it takes until then, by the clock of the node. */
export function until(at) {
  if (at === null || at === undefined) return "–";
  return at <= now() ? "now" : `in ${span(at - now())}`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 10 ? `${Number(value).toFixed(2)} ms` : span(value / 1000);
}

/** The time of day today, else with its date. */
export function time(at) {
  if (at === null || at === undefined) return "–";
  const when = new Date(at * 1000);
  const isToday = when.toDateString() === new Date().toDateString();
  return (isToday ? clock : calendar).format(when);
}

export function plural(amount, one, many = `${one}s`) {
  return `${count(amount)} ${amount === 1 ? one : many}`;
}

/** Any value as JSON that people can read; text that is JSON already is laid out. */
export function pretty(value) {
  if (typeof value === "string") return layOutJson(value);
  return value === undefined ? "" : JSON.stringify(value, null, 2);
}

/** One line of any value. */
export function brief(value, longest = 80) {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  return text.length > longest ? `${text.slice(0, longest - 1)}…` : text;
}
