// What surrounds every page: which cluster and node this is, the way to the other pages, the search.

import { Problem } from "./api.js";
import { aheadOf } from "./clock.js";
import { h } from "./dom.js";
import { span, time } from "./format.js";
import { icon } from "./icons.js";
import { addressOf, link } from "./router.js";
import { getTheme, mayChange, setTheme, setToken } from "./session.js";

const STATES = {
  connecting: ["connecting", "Connecting…"],
  live: ["live", "Live"],
  lost: ["lost", "No connection"],
};
const THEMES = { system: "dark", dark: "light", light: "system" };

/**
 * @param {import("./main.js").View} view
 * @param {{path: string, title: string}[]} pages
 */
export function shell(view, pages) {
  return [
    h(
      "header.top",
      null,
      h(
        "a.brand",
        { href: link("overview"), "aria-label": "Postroad, overview" },
        h("img", { src: "icon.svg", alt: "", width: 22, height: 22 }),
      ),
      place(view),
      search(view),
      h("span.space"),
      clockMark(),
      !mayChange() &&
        h("span.badge.warning", { title: "Your token may look, not change" }, "read only"),
      connection(view),
      themeButton(view),
      h(
        "button.icon",
        {
          type: "button",
          "aria-label": "Forget the token",
          title: "Forget the token",
          onclick: () => {
            setToken(null);
            location.reload();
          },
        },
        icon("leave"),
      ),
    ),
    h(
      "nav.pages",
      { "aria-label": "Pages" },
      pages.map((it) => pageLink(view, it)),
    ),
  ];
}

/** The cluster and the node, always in sight, so that nobody works on the wrong one. */
function place(view) {
  const here = view.overview?.node;
  const home = view.home?.name || "";
  const chosen = view.node || home;
  // Also from a node that is none, there is a way back.
  const known = [...view.members.map((it) => it.name), home, chosen];
  const names = [...new Set(known)].filter(Boolean).sort(compareNames);
  return h(
    "div.place",
    null,
    h("span.cluster", { title: "The cluster" }, view.home?.cluster ?? here?.cluster ?? "…"),
    h("span.muted", { "aria-hidden": "true" }, "/"),
    h(
      "select",
      {
        "aria-label": "Node",
        value: chosen,
        onchange: (event) => chooseNode(view, event.target.value),
      },
      names.map((it) => h("option", { key: it, value: it }, it)),
    ),
  );
}

function compareNames(one, other) {
  return one.localeCompare(other, "en", { numeric: true });
}

function chooseNode(view, name) {
  const { node: _, ...query } = view.route.query;
  const chosen = name === view.home?.name ? {} : { node: name };
  // What a page is about at one node may not be at another.
  location.hash = addressOf({ page: view.route.page, args: [], query: { ...query, ...chosen } });
}

function search(view) {
  const go = (event) => {
    event.preventDefault();
    const text = new FormData(event.target).get("text").trim();
    if (text !== "") location.hash = link("search", [], { text });
  };
  return h(
    "form.search",
    { role: "search", onsubmit: go },
    h("input", {
      type: "search",
      name: "text",
      placeholder: "Any id or name  ( / )",
      "aria-label": "Search for any id or name",
      value: view.route.page === "search" ? view.route.query.text || "" : "",
    }),
  );
}

function connection(view) {
  const [kind, text] = STATES[view.connection];
  if (kind === "lost") {
    return h(
      "button.connection.lost",
      {
        type: "button",
        title: "What is shown is what was known then. Press to try again now.",
        onclick: view.reconnect,
        role: "status",
      },
      text,
      h("span.roomy", null, ` since ${time(view.lostAt)} – retrying`),
    );
  }
  return h(`span.connection.${kind}`, { role: "status" }, text);
}

/** Times are those of the node; who compares them with this machine's clock should know. */
function clockMark() {
  const ahead = aheadOf();
  if (ahead === 0) return null;
  const title = `The clock of the node is ${span(Math.abs(ahead))} ${ahead > 0 ? "ahead of" : "behind"} the one of this machine. Times are those of the node.`;
  return h("span.badge.warning", { title, tabindex: 0, "aria-label": title }, "clocks differ");
}

function themeButton(view) {
  const theme = getTheme();
  return h(
    "button.icon",
    {
      type: "button",
      class: "theme",
      "aria-label": `Colours: ${theme}. Change to ${THEMES[theme]}`,
      title: `Colours: ${theme}`,
      onclick: () => {
        setTheme(THEMES[theme]);
        view.update();
      },
    },
    icon(theme),
  );
}

function pageLink(view, page) {
  const mark = page.mark?.(view);
  return h(
    "a",
    {
      key: page.path,
      href: link(page.path),
      "aria-current": view.route.page === page.path ? "page" : null,
    },
    page.title,
    mark && h(`span.count.${mark.kind}`, { title: mark.title }, mark.text),
  );
}

/** The page that asks for the token. */
export function login(state, enter) {
  const submit = async (event) => {
    event.preventDefault();
    const token = new FormData(event.target).get("token").trim();
    state.problem = null;
    try {
      await enter(token);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      state.problem = error.status === 401 ? "This is not the token of this node." : error.message;
      state.draw();
    }
  };
  return h(
    "form.login",
    { onsubmit: submit },
    h("img", { src: "icon.svg", alt: "", width: 48, height: 48 }),
    h("h1", null, "Postroad"),
    h("p", null, "This node asks for a token."),
    h("label", { for: "token" }, "Token"),
    h("input", {
      id: "token",
      name: "token",
      type: "password",
      autocomplete: "off",
      required: true,
    }),
    state.problem && h("p.wrong", { role: "alert" }, state.problem),
    h("button.primary", { type: "submit" }, "Open"),
    h(
      "p.muted",
      null,
      "It is in the file ",
      h("code", null, "NAME.token"),
      " in the node's data directory, ",
      h("code", null, ".postroad"),
      " by default, and in the address that ",
      h("code", null, "postroad node start"),
      " prints.",
    ),
  );
}
