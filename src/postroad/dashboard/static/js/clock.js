// The clock of the node: it made all times that are shown, and this machine may think otherwise.

// The node tells its time in whole seconds, and an answer takes a while.
const TOLERATED_S = 5;

let ahead = 0;

/** Seconds since 1970, as the node counts them. */
export function now() {
  return Date.now() / 1000 + ahead;
}

/** By how many seconds the node is ahead of this machine; 0 if they agree. */
export function aheadOf() {
  return ahead;
}

/** Take note of what time an answer says it is; returns whether that is news. */
export function noteTime(response) {
  const told = Date.parse(response.headers.get("Date") || "");
  if (Number.isNaN(told)) return false;
  const found = Math.round((told - Date.now()) / 1000);
  const next = Math.abs(found) <= TOLERATED_S ? 0 : found;
  if (Math.abs(next - ahead) <= TOLERATED_S && (next === 0) === (ahead === 0)) return false;
  ahead = next;
  return true;
}
