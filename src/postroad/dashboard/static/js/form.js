// Forms made from JSON schemas: a control for each plain field, JSON for whatever is not plain.

import { h } from "./dom.js";
import { parseJson } from "./json.js";

const DEEPEST = 4;
let nextForm = 1;

/** What people have typed so far, and what it means. */
export class Form {
  /**
   * @param {object | null} schema of an object; without one, a field for any JSON. A field that
   *   has `orText` takes what is no JSON as text.
   * @param {any} [initial] the first values
   */
  constructor(schema, initial) {
    this.id = `form${nextForm}`;
    nextForm += 1;
    this.schema = schema ? resolve(schema, schema) : null;
    this.root = schema;
    this.isPlain = this.schema !== null && controlOf(this.schema) === "object";
    this.asJson = !this.isPlain;
    /** @type {Record<string, string | boolean>} what was typed, by path */
    this.typed = {};
    /** @type {Record<string, string>} what is wrong, by path */
    this.wrong = {};
    this.json = "";
    if (initial !== undefined && initial !== null) {
      if (this.isPlain) this.#fill(initial, "");
      this.json = JSON.stringify(initial, null, 2);
    }
  }

  #fill(values, path) {
    for (const [name, value] of Object.entries(values)) {
      const at = `${path}/${name}`;
      if (value !== null && typeof value === "object") {
        this.#fill(value, at);
        this.typed[at] = JSON.stringify(value);
      } else {
        this.typed[at] = typeof value === "boolean" ? value : String(value ?? "");
      }
    }
  }

  /** Everything that was said; undefined if something is wrong, which is then shown. */
  read() {
    this.wrong = {};
    const value = this.asJson ? this.#readJson("", this.json) : this.#readObject(this.schema, "");
    return Object.keys(this.wrong).length > 0 ? undefined : value;
  }

  #readJson(path, text) {
    if (text.trim() === "") return null;
    try {
      return parseJson(text);
    } catch (error) {
      this.wrong[path] = `This is no JSON: ${error.message}`;
      return null;
    }
  }

  #readObject(schema, path) {
    const value = {};
    for (const [name, part] of Object.entries(schema.properties || {})) {
      const field = resolve(part, this.root);
      const at = `${path}/${name}`;
      const isRequired = (schema.required || []).includes(name);
      const read = this.#readField(field, at, isRequired);
      if (read !== undefined) value[name] = read;
    }
    return value;
  }

  #readField(field, path, isRequired) {
    const control = controlOf(field);
    if (control === "object" && depthOf(path) < DEEPEST) {
      const value = this.#readObject(field, path);
      return isRequired || Object.keys(value).length > 0 ? value : undefined;
    }
    if (control === "boolean") return this.typed[path] ?? (isRequired ? false : undefined);
    const text = this.typed[path];
    if (text === undefined || text === "") {
      if (!isRequired) return undefined;
      if (control === "text") return "";
      this.wrong[path] = "This must be said.";
      return undefined;
    }
    if (control === "number") return this.#readNumber(field, path, text);
    if (control === "choice") return field.enum.find((it) => String(it) === text);
    if (control === "text") return text;
    return field.orText ? readSaid(text) : this.#readJson(path, text);
  }

  #readNumber(field, path, text) {
    const value = Number(text);
    if (Number.isNaN(value)) this.wrong[path] = "This must be a number.";
    else if (typesOf(field).includes("integer") && !typesOf(field).includes("number")) {
      if (!Number.isInteger(value)) this.wrong[path] = "This must be a whole number.";
    }
    return value;
  }

  /** Change between single fields and JSON, taking along what was said. */
  toggle() {
    if (this.asJson) {
      const value = this.#readJson("", this.json);
      if (this.wrong[""]) return;
      this.typed = {};
      this.#fill(value || {}, "");
    } else {
      this.json = JSON.stringify(this.#readObject(this.schema, ""), null, 2);
    }
    this.wrong = {};
    this.asJson = !this.asJson;
  }
}

/** JSON if it is JSON, else the text itself. */
function readSaid(text) {
  try {
    return parseJson(text);
  } catch {
    return text;
  }
}

/** The controls of a form. `update` draws the page again. */
export function formFields(form, update) {
  const fields = form.asJson ? [jsonField(form, update)] : fieldsOf(form, form.schema, "", update);
  const isEmpty = !form.asJson && fields.length === 0;
  return h(
    "div.form",
    null,
    isEmpty ? h("p.muted", null, "It takes no parameters.") : fields,
    form.isPlain &&
      !isEmpty &&
      h(
        "button.link",
        {
          type: "button",
          onclick: () => {
            form.toggle();
            update();
          },
        },
        form.asJson ? "Edit as fields" : "Edit as JSON",
      ),
  );
}

function jsonField(form, update) {
  return labelled(
    form,
    "",
    form.jsonLabel || "JSON",
    null,
    h("textarea.code", {
      id: `${form.id}-`,
      rows: 6,
      spellcheck: "false",
      value: form.json,
      oninput: (event) => {
        form.json = event.target.value;
        update();
      },
    }),
  );
}

function fieldsOf(form, schema, path, update) {
  return Object.entries(schema.properties || {}).map(([name, part]) => {
    const field = resolve(part, form.root);
    const at = `${path}/${name}`;
    const isRequired = (schema.required || []).includes(name);
    const title = field.title && !field.properties ? field.title : name;
    if (controlOf(field) === "object" && depthOf(at) < DEEPEST) {
      return h(
        "fieldset",
        { key: at },
        h("legend", null, name, isRequired && " *"),
        fieldsOf(form, field, at, update),
      );
    }
    const hint = hintOf(field, part);
    return labelled(
      form,
      at,
      title,
      hint,
      controlFor(form, field, at, isRequired, update),
      isRequired,
    );
  });
}

function labelled(form, path, title, hint, control, isRequired = false) {
  const wrong = form.wrong[path];
  return h(
    "div.field",
    { key: path || "json" },
    h("label", { for: `${form.id}-${path}` }, title, isRequired && h("span.required", null, " *")),
    control,
    hint && h("small.muted", null, hint),
    wrong && h("small.wrong", { role: "alert" }, wrong),
  );
}

function controlFor(form, field, path, isRequired, update) {
  const id = `${form.id}-${path}`;
  const control = controlOf(field);
  const set = (value) => {
    form.typed[path] = value;
    update();
  };
  if (control === "boolean") {
    return h("input", {
      id,
      type: "checkbox",
      checked: form.typed[path] ?? field.default ?? false,
      onchange: (event) => set(event.target.checked),
    });
  }
  if (control === "choice") {
    return h(
      "select",
      { id, value: form.typed[path] ?? "", onchange: (event) => set(event.target.value) },
      !isRequired && h("option", { value: "" }, "–"),
      field.enum.map((it) => h("option", { value: String(it) }, String(it))),
    );
  }
  const given = {
    id,
    value: form.typed[path] ?? "",
    placeholder: placeholderOf(field, control),
    spellcheck: "false",
    autocomplete: "off",
    oninput: (event) => set(event.target.value),
  };
  if (control === "json") return h("textarea.code", { ...given, rows: 3 });
  return h("input", { ...given, type: "text", inputmode: control === "number" ? "decimal" : null });
}

function placeholderOf(field, control) {
  if (field.default !== undefined && field.default !== null)
    return String(JSON.stringify(field.default));
  if (control !== "json") return "";
  return field.orText ? "JSON or text" : "JSON";
}

function hintOf(field, part) {
  const said = [part.description || (field.properties ? "" : field.description)];
  if (field.minimum !== undefined) said.push(`at least ${field.minimum}`);
  if (field.maximum !== undefined) said.push(`at most ${field.maximum}`);
  if (field.pattern !== undefined) said.push(`like ${field.pattern}`);
  return said.filter(Boolean).join("; ");
}

function depthOf(path) {
  return path.split("/").length - 1;
}

/** Follow references, and look through "this or nothing" to this. */
function resolve(schema, root, depth = 0) {
  if (depth > 8 || schema === null || typeof schema !== "object") return {};
  if (schema.$ref) {
    const found = schema.$ref
      .replace(/^#\//, "")
      .split("/")
      .reduce((at, name) => at?.[name], root);
    return resolve({ ...found, ...without(schema, "$ref") }, root, depth + 1);
  }
  const choices = (schema.anyOf || schema.oneOf || []).filter((it) => it.type !== "null");
  if (choices.length === 1) {
    const rest = without(without(schema, "anyOf"), "oneOf");
    return resolve({ ...choices[0], ...rest }, root, depth + 1);
  }
  return schema;
}

function without(object, name) {
  const { [name]: _, ...rest } = object;
  return rest;
}

function typesOf(field) {
  return [field.type].flat().filter((it) => it && it !== "null");
}

/** @returns {"object" | "boolean" | "choice" | "number" | "text" | "json"} */
function controlOf(field) {
  if (Array.isArray(field.enum)) return "choice";
  const types = typesOf(field);
  if (types.length === 1) {
    if (types[0] === "object" && field.properties) return "object";
    if (types[0] === "boolean") return "boolean";
    if (types[0] === "string") return "text";
  }
  const isNumber = types.length > 0 && types.every((it) => it === "integer" || it === "number");
  return isNumber ? "number" : "json";
}
