// A small virtual DOM: pages say what should be there, and only differences reach the document.
// Text is always set as text, never as markup, so that no name or body can become code.

const SVG = "http://www.w3.org/2000/svg";
// Only what `h` made has it: no answer of a server can, since JSON knows no symbols.
const MADE_HERE = Symbol("vnode");
const AS_PROPERTY = new Set(["checked", "disabled", "indeterminate", "open", "selected", "value"]);

/**
 * @typedef {object} Element_ What an element should be.
 * @property {string} tag
 * @property {Record<string, any>} props attributes, `on…` listeners, `style` as an object
 * @property {any[]} children
 * @property {string | number | undefined} key who it is among its siblings
 * @property {Node} [node] what stands for it in the document
 */

/**
 * Describe an element: `h("a.quiet", {href: "#/queues"}, "Queues")`.
 * Children may be nested lists; null, undefined and booleans show nothing.
 */
export function h(name, props, ...children) {
  const [tag, ...classes] = name.split(".");
  const own = { ...(props || {}) };
  const key = own.key;
  delete own.key;
  if (classes.length > 0) {
    own.class = own.class ? `${classes.join(" ")} ${own.class}` : classes.join(" ");
  }
  return { [MADE_HERE]: true, tag, props: own, children: flatten(children, []), key };
}

/** Make the content of a node of the document be these children. */
export function render(container, ...children) {
  const after = flatten(children, []);
  patchChildren(container, container.shown || [], after, container.namespaceURI === SVG);
  container.shown = after;
}

function flatten(children, into) {
  for (const child of children) {
    if (Array.isArray(child)) {
      flatten(child, into);
    } else if (child !== null && typeof child === "object" && child[MADE_HERE] === true) {
      into.push(child);
    } else {
      into.push({ tag: "", text: textOf(child), key: undefined });
    }
  }
  return into;
}

/** What shows nothing keeps its place, so that its neighbours stay who they are. */
function textOf(child) {
  if (child === null || child === undefined || typeof child === "boolean") return "";
  // Data where a text was expected, perhaps of a hostile node, is shown and never built.
  return typeof child === "object" ? JSON.stringify(child) : String(child);
}

function patchChildren(parent, before, after, isSvg) {
  const keyed = new Map();
  const loose = [];
  for (const it of before) {
    if (it.key === undefined) loose.push(it);
    else keyed.set(it.key, it);
  }
  let cursor = parent.firstChild;
  for (const vnode of after) {
    let old = vnode.key === undefined ? loose.shift() : keyed.get(vnode.key);
    if (old !== undefined && old.tag !== vnode.tag) {
      cursor = remove(old, cursor);
      if (vnode.key !== undefined) keyed.delete(vnode.key);
      old = undefined;
    }
    if (old === undefined) {
      create(vnode, isSvg);
    } else {
      if (vnode.key !== undefined) keyed.delete(vnode.key);
      patch(old, vnode, isSvg);
    }
    if (vnode.node === cursor) cursor = cursor.nextSibling;
    else parent.insertBefore(vnode.node, cursor);
  }
  for (const old of [...loose, ...keyed.values()]) remove(old, null);
}

function remove(old, cursor) {
  const next = old.node === cursor ? cursor.nextSibling : cursor;
  old.node.remove();
  return next;
}

function create(vnode, isSvg) {
  if (vnode.tag === "") {
    vnode.node = document.createTextNode(vnode.text);
    return;
  }
  const inSvg = isSvg || vnode.tag === "svg";
  const element = inSvg
    ? document.createElementNS(SVG, vnode.tag)
    : document.createElement(vnode.tag);
  vnode.node = element;
  // Children first: the value of a <select> is one of its options.
  patchChildren(element, [], vnode.children, inSvg);
  for (const [name, value] of Object.entries(vnode.props)) setProp(element, name, value, undefined);
}

function patch(old, vnode, isSvg) {
  vnode.node = old.node;
  if (vnode.tag === "") {
    if (old.text !== vnode.text) vnode.node.data = vnode.text;
    return;
  }
  patchChildren(vnode.node, old.children, vnode.children, isSvg || vnode.tag === "svg");
  for (const name of Object.keys(old.props)) {
    if (!(name in vnode.props)) setProp(vnode.node, name, undefined, old.props[name]);
  }
  for (const [name, value] of Object.entries(vnode.props)) {
    // What people typed or opened stays until the page itself says otherwise.
    if (value !== old.props[name]) setProp(vnode.node, name, value, old.props[name]);
  }
}

function setProp(element, name, value, before) {
  if (name.startsWith("on")) {
    element[name] = value ?? null;
  } else if (name === "style") {
    setStyle(element, value || {}, before || {});
  } else if (AS_PROPERTY.has(name) && element.tagName !== "OPTION") {
    if (element[name] !== value) element[name] = value ?? (name === "value" ? "" : false);
  } else if (value === undefined || value === null || value === false) {
    element.removeAttribute(name);
  } else {
    element.setAttribute(name, value === true ? "" : String(value));
  }
}

function setStyle(element, style, before) {
  for (const name of Object.keys(before)) {
    if (!(name in style)) element.style.removeProperty(name);
  }
  for (const [name, value] of Object.entries(style)) element.style.setProperty(name, String(value));
}
