// The services of a node of the original system; python_services.py has the same.
"use strict";

const crypto = require("node:crypto");
const { PassThrough, Readable } = require("node:stream");
const { Errors } = require("moleculer");

const PIECE = 300_000;

// Some bytes that are the same on both sides.
function content(seed, size) {
	if (!size) return Buffer.alloc(0);
	return crypto.createHash("shake256", { outputLength: size }).update(seed).digest();
}

function* pieces(data) {
	for (let at = 0; at < data.length; at += PIECE) yield data.subarray(at, at + PIECE);
}

// A stream of bytes, or of objects; one that fails does so after everything else.
function source({ seed = "", size = 0, objects, fails }) {
	const chunks = objects || pieces(content(seed, size));
	if (!fails) return Readable.from(chunks, { objectMode: !!objects });
	const stream = new PassThrough({ objectMode: !!objects });
	for (const chunk of chunks) stream.write(chunk);
	// Later: an error that comes before anybody listens would end this process.
	setTimeout(() => stream.destroy(new Errors.MoleculerError("torn", 507, "TORN", { at: 1 })), 50);
	return stream;
}

// What came by a stream: its size and sum, or its objects.
async function digest(stream) {
	const objects = [];
	const sum = crypto.createHash("sha256");
	let bytes = 0;
	for await (const chunk of stream) {
		if (stream.readableObjectMode) objects.push(chunk);
		else {
			bytes += chunk.length;
			sum.update(chunk);
		}
	}
	return stream.readableObjectMode ? { objects } : { bytes, sha256: sum.digest("hex") };
}

function contextOf(ctx) {
	return { id: ctx.id, level: ctx.level, meta: { ...ctx.meta }, headers: ctx.headers,
		requestID: ctx.requestID, parentID: ctx.parentID, caller: ctx.caller, nodeID: ctx.nodeID,
		tracing: ctx.tracing, timeout: ctx.options.timeout };
}

const actions = {
	echo: ctx => ctx.params,
	nothing() {},
	context(ctx) {
		const seen = contextOf(ctx);
		ctx.meta.seen = "by js";
		ctx.responseHeaders.reply = "from js";
		return seen;
	},
	checked: {
		params: { count: "number|integer|positive", name: "string|optional" },
		handler: ctx => ctx.params
	},
	fail(ctx) {
		const Class = Errors[ctx.params.name] || TypeError;
		throw new Class(...ctx.params.args);
	},
	tagAndFail(ctx) {
		ctx.meta.tag = "set before the failure";
		throw new Errors.MoleculerClientError("no", 409, "CONFLICT", { why: "so" });
	},
	async slow(ctx) {
		await new Promise(resolve => setTimeout(resolve, ctx.params.ms));
		return "slept";
	},
	hurried: { timeout: 100, handler: ctx => actions.slow(ctx) },
	async relay(ctx) {
		const { action, params, options } = ctx.params;
		ctx.meta.relay = "js";
		return { result: await ctx.call(action, params, options || {}), meta: ctx.meta,
			id: ctx.id, requestID: ctx.requestID };
	},
	async upload(ctx) {
		return { params: ctx.params, meta: ctx.meta, ...(await digest(ctx.stream)) };
	},
	download: ctx => source(ctx.params),
	back: ctx => ctx.stream.pipe(new PassThrough({ objectMode: !!ctx.params.objects })),
	retried: {
		retryPolicy: { enabled: true, retries: 3, delay: 10 },
		handler(ctx) {
			this.tries = (this.tries || 0) + 1;
			if (this.tries % 3) throw new Errors.MoleculerRetryableError("not yet");
			return this.tries;
		}
	},
	open: { visibility: "public", handler: () => "open" },
	guarded: { visibility: "protected", handler: () => "guarded" },
	secret: { visibility: "private", handler: () => "secret" },
	async tell(ctx) {
		return [await this.actions.secret({}, { parentCtx: ctx }), await ctx.call("js.guarded")];
	},
	async announce(ctx) {
		await ctx.emit(ctx.params.event, ctx.params.data, { headers: { trail: "js" } });
	}
};

function eventsOf(note) {
	const heard = (handler, more) => ({ ...more, handler: ctx => note(handler, ctx) });
	return {
		"js.exact": heard("exact"),
		"js.*": heard("star", { group: "js-stars" }),
		"js.**": heard("stars", { group: "js-all" }),
		"js.?.x": heard("mark", { group: "js-marks" }),
		"both.*": heard("both"),
		"split.*": heard("split", { group: "shared-group" })
	};
}

function cachedService() {
	let runs = 0;
	const handler = () => ({ js: ++runs });
	const get = { cache: { keys: ["id", "#user"] }, handler };
	return { name: "posts", actions: { find: { cache: true, handler }, get } };
}

module.exports = {
	cachedService, content, digest, source,
	servicesOf: note => [
		{ name: "js", settings: { colour: "red", $secureSettings: ["key"], key: "hidden" },
			metadata: { made: "in js" }, actions, events: eventsOf(note) },
		{ name: "js", version: 2, actions: { where: () => "v2" } },
		{ name: "js", version: "beta", actions: { where: () => "beta" } },
		{ name: "shared",
			actions: {
				where() {
					return this.broker.nodeID;
				},
				// It takes long, but only here.
				async work(ctx) {
					await actions.slow(ctx);
					return this.broker.nodeID;
				}
			},
			events: { "shared.done": { handler: ctx => note("shared", ctx) } } }
	]
};
