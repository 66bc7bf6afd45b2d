// The last minutes of numbers that change, for small charts. Taken once a second while a tab looks.

const LONGEST = 180;
/** @type {Map<string, {at: number, values: Record<string, number>}[]>} */
const samples = new Map();

/** Keep the numbers of this second under a name. */
export function sample(name, values) {
  const at = Math.floor(Date.now() / 1000);
  const series = samples.get(name) || [];
  if (series.at(-1)?.at === at) series.pop();
  series.push({ at, values });
  samples.set(name, series.slice(-LONGEST));
}

/** One number over time, oldest first. */
export function seriesOf(name, field) {
  return (samples.get(name) || []).map((it) => ({ at: it.at, value: it.values[field] ?? 0 }));
}
