// Values of JavaScript that JSON does not have, to JSON and back.
"use strict";

function plain(it) {
	if (it === undefined) return { $: "undefined" };
	if (typeof it === "bigint") return { $: "bigint", value: String(it) };
	if (typeof it === "number" && !Number.isFinite(it)) return { $: "number", value: String(it) };
	if (it === null || typeof it !== "object") return typeof it === "function" ? null : it;
	if (it instanceof Uint8Array) return { $: "bytes", value: Buffer.from(it).toString("hex") };
	if (it instanceof Date) return { $: "date", value: it.getTime() };
	if (it instanceof Map) return { $: "map", value: [...it].map(plain) };
	if (Array.isArray(it)) return it.map(plain);
	return Object.fromEntries(Object.entries(it).map(([key, item]) => [key, plain(item)]));
}

function value(it) {
	if (it === null || typeof it !== "object") return it;
	if (it.$ === "undefined") return undefined;
	if (it.$ === "bytes") return Buffer.from(it.value, "hex");
	if (it.$ === "date") return new Date(it.value);
	if (Array.isArray(it)) return it.map(value);
	return Object.fromEntries(Object.entries(it).map(([key, item]) => [key, value(item)]));
}

module.exports = { plain, value };
