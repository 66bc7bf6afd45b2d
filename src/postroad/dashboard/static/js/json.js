// JSON without losing digits: ids and amounts may be larger than the numbers of JavaScript.

const MANY_DIGITS = /\d{16}/;

/** Read JSON; whole numbers that would be rounded are kept as they are written. */
export function parseJson(text) {
  return MANY_DIGITS.test(text) && JSON.rawJSON ? JSON.parse(text, keepDigits) : JSON.parse(text);
}

function keepDigits(_key, value, context) {
  const isRounded = Number.isInteger(value) && !Number.isSafeInteger(value);
  return isRounded && context?.source ? JSON.rawJSON(context.source) : value;
}

/** Lay out JSON that is a text already; a text that is no JSON stays as it is. */
export function layOutJson(text) {
  try {
    return JSON.stringify(parseJson(text), null, 2);
  } catch {
    return text;
  }
}
