// A whole node of the original system, worked by lines of JSON. Each command has an id, and so has
// its answer, which may come after those of later ones.
// Usage: node node.js <options of the broker as JSON>
"use strict";

const readline = require("node:readline");
const { Errors, ServiceBroker } = require("moleculer");
const { cachedService, digest, servicesOf, source } = require("./node_services.js");
const { plain, value } = require("./values.js");

const NEWS = ["$node.connected", "$node.updated", "$node.disconnected"];
const POLL_MS = 10;

const heard = [];
const news = [];

const broker = new ServiceBroker({
	logger: false,
	skipProcessEventRegistration: true,
	...JSON.parse(process.argv[2])
});

servicesOf(note).forEach(schema => broker.createService(schema));
if (broker.cacher) broker.createService(cachedService());
NEWS.forEach(name => broker.localBus.on(name, ({ node, ...more }) => {
	news.push({ event: name, node: node.id, ...more });
}));

function note(handler, ctx) {
	heard.push({ handler, event: ctx.eventName, data: ctx.params, type: ctx.eventType,
		groups: ctx.eventGroups, meta: ctx.meta, headers: ctx.headers, nodeID: ctx.nodeID,
		level: ctx.level, caller: ctx.caller, requestID: ctx.requestID });
}

function told(error) {
	return { name: error.name, message: error.message, code: error.code, type: error.type,
		data: error.data, retryable: error.retryable, nodeID: error.nodeID,
		isMoleculers: error instanceof Errors.MoleculerError };
}

async function call({ action, params, options, stream }) {
	const given = { ...value(options) };
	if (stream) given.stream = source(value(stream));
	const promise = broker.call(action, value(params), given);
	try {
		const answer = await promise;
		const meta = promise.ctx ? promise.ctx.meta : {};
		const isStream = !!answer && typeof answer.pipe === "function";
		return { answer: isStream ? await digest(answer) : answer, meta };
	} catch (error) {
		return { error: told(error), meta: promise.ctx ? promise.ctx.meta : {} };
	}
}

async function until(isDone) {
	while (!isDone()) await new Promise(resolve => setTimeout(resolve, POLL_MS));
}

const commands = {
	call,
	mcall: ({ calls, options }) => broker.mcall(value(calls), value(options)).then(
		results => Array.isArray(results)
			? results.map(it => it.status === "rejected" ? { error: told(it.reason) } : it)
			: results,
		error => ({ error: told(error) })
	),
	emit: ({ event, data, options }) => broker.emit(event, value(data), value(options)),
	broadcast: ({ event, data, options }) => broker.broadcast(event, value(data), value(options)),
	broadcastLocal: ({ event, data }) => broker.broadcastLocal(event, value(data)),
	// What handlers of events got, once there are so many.
	async heard({ count }) {
		await until(() => heard.length >= count);
		return heard.splice(0);
	},
	// What became of other nodes, once something did.
	async news({ event, node }) {
		await until(() => news.some(it => it.event === event && it.node === node));
		return news.splice(0);
	},
	ping: ({ node }) => broker.ping(node),
	async services({ names, are }) {
		await until(() => names.every(name => broker.registry.hasService(name) === are));
	},
	nodes: () => broker.registry.getNodeList({ onlyAvailable: false, withServices: true })
		.map(({ id, available, instanceID, client, metadata, cpu, port, services }) => ({
			id, available, instanceID, client, metadata, cpu, port,
			services: (services || []).map(it => ({ fullName: it.fullName, settings: it.settings,
				metadata: it.metadata }))
		})),
	actions: () => broker.registry.getActionList({}).map(it => it.name),
	create({ name }) {
		broker.createService({ name, actions: { run: () => name } });
	},
	destroy: ({ name }) => broker.destroyService(name),
	clean: ({ pattern }) => broker.cacher.clean(pattern),
	async start() {
		await broker.start();
		await until(() => !broker.cacher || broker.cacher.connected);
	},
	stop: () => broker.stop()
};

async function answer(line) {
	const { id, command, ...rest } = JSON.parse(line);
	let answered;
	try {
		answered = { answer: plain(await commands[command](rest)) };
	} catch (error) {
		answered = { failure: String(error && error.stack) };
	}
	process.stdout.write(JSON.stringify({ id, ...answered }) + "\n");
}

readline.createInterface({ input: process.stdin })
	.on("line", answer)
	.on("close", () => process.exit(0));
