// What the reader did at each step of the history: how far down they were, what they sorted,
// chose and typed. Who goes back finds it as it was; who goes on begins anew.

const REMEMBERED = 50;

/**
 * @typedef {object} Step
 * @property {number} top how far down
 * @property {string} place the page that the state is of
 * @property {Record<string, any>} state
 */

/** @type {Map<number, Step>} */
const steps = new Map();
let nextKey = Date.now();

/** The step that the browser is at; a new one if it was never here. */
function current() {
  let key = history.state?.key;
  if (key === undefined) {
    key = nextKey;
    nextKey += 1;
    history.replaceState({ key }, "");
  }
  if (!steps.has(key)) steps.set(key, { top: 0, place: "", state: {} });
  if (steps.size > REMEMBERED) steps.delete(steps.keys().next().value);
  return steps.get(key);
}

/** What the reader did on a page at this step. */
export function stateOf(place) {
  const step = current();
  if (step.place !== place) Object.assign(step, { place, state: {} });
  return step.state;
}

/** Go to where the reader was. */
export function showPlace() {
  window.scrollTo(0, current().top);
}

/** Remember from now on. */
export function keepPlaces() {
  history.scrollRestoration = "manual";
  window.addEventListener("scroll", () => {
    current().top = window.scrollY;
  });
}
