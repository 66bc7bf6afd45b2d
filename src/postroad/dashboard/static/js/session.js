// Who looks: the token, what it may do, and how the page should look. Kept for this tab alone,
// except the colours.

const TOKEN = "postroad.token";
const THEME = "postroad.theme";

let token = sessionStorage.getItem(TOKEN);
let role = "change";

/** The token that opens the node; null if none is known. */
export function getToken() {
  return token;
}

/** @param {string | null} value */
export function setToken(value) {
  token = value;
  if (value === null) sessionStorage.removeItem(TOKEN);
  else sessionStorage.setItem(TOKEN, value);
}

/** Take the token out of an address such as `#token=…`, so that it stays in no history. */
export function takeTokenFromAddress() {
  if (!location.hash.startsWith("#token=")) return;
  const said = new URLSearchParams(location.hash.slice(1));
  setToken(said.get("token"));
  const route = said.get("route") || "/overview";
  history.replaceState(null, "", `${location.pathname}${location.search}#${route}`);
}

/** Whether the token may change things; the node says so with every answer. */
export function mayChange() {
  return role === "change";
}

/** Returns whether that is news. */
export function setRole(value) {
  const isNew = value !== role;
  role = value;
  return isNew;
}

/** `light`, `dark`, or `system` for what the machine prefers. */
export function getTheme() {
  return localStorage.getItem(THEME) || "system";
}

export function setTheme(theme) {
  localStorage.setItem(THEME, theme);
  showTheme();
}

export function showTheme() {
  const theme = getTheme();
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}
