// A node of the original system, worked by lines of JSON: what others send it comes in by them,
// and what it sends goes out by them. Usage: node peer.js <serializer>
"use strict";

const readline = require("node:readline");
const { Errors, ServiceBroker, Transporters } = require("moleculer");
const { plain, value } = require("./values.js");

let sent = [];
const heard = [];
const results = new Map();

class Wire extends Transporters.Base {
	async connect() {
		await this.onConnected();
	}
	async disconnect() {
		this.connected = false;
	}
	async subscribe() {}
	async send(topic, data, { packet }) {
		sent.push({ topic, kind: packet.type, hex: data.toString("hex") });
	}
}

const broker = new ServiceBroker({
	nodeID: "js-1",
	namespace: "test",
	logger: false,
	serializer: process.argv[2],
	transporter: new Wire(),
	heartbeatInterval: 0,
	skipProcessEventRegistration: true,
	registry: { stopDelay: 0 },
	transit: { serviceChangedDebounceTime: 0 }
});

broker.createService({
	name: "lab",
	version: 2,
	settings: { colour: "red" },
	actions: {
		echo: { params: { any: "any|optional" }, handler: ctx => ctx.params },
		nothing() {},
		context(ctx) {
			ctx.meta.seen = true;
			ctx.responseHeaders.reply = "yes";
			return { id: ctx.id, level: ctx.level, meta: ctx.meta, headers: ctx.headers,
				requestID: ctx.requestID, parentID: ctx.parentID, caller: ctx.caller,
				nodeID: ctx.nodeID, timeout: ctx.options.timeout };
		}
	},
	events: {
		"lab.*": { group: "watchers", handler: ctx => note(ctx) },
		"all.**": ctx => note(ctx)
	}
});

function note(ctx) {
	heard.push({ name: ctx.eventName, data: ctx.params, type: ctx.eventType, groups: ctx.eventGroups,
		meta: ctx.meta, headers: ctx.headers, nodeID: ctx.nodeID });
}

function told(error) {
	return { name: error.name, message: error.message, code: error.code, type: error.type,
		data: error.data, retryable: error.retryable, nodeID: error.nodeID,
		isMoleculers: error instanceof Errors.MoleculerError };
}

async function result(promise) {
	try {
		return { answer: await promise };
	} catch (error) {
		return { error: told(error) };
	}
}

const commands = {
	// What the serializer makes of some bytes, and of a value.
	read: ({ hex }) => broker.serializer.deserialize(Buffer.from(hex, "hex")),
	write: ({ payload }) => broker.serializer.serialize(value(payload)).toString("hex"),
	// A packet arrives. Not waited for: the handling of a stream takes as long as the stream.
	async receive({ kind, hex }) {
		broker.transit.tx.receive(kind, Buffer.from(hex, "hex"));
		await new Promise(resolve => setImmediate(resolve));
	},
	call({ key, action, params, options }) {
		results.set(key, result(broker.call(action, value(params), value(options))));
	},
	result: ({ key }) => results.get(key),
	// Until it has sent some packets of a kind.
	async until({ kind, count }) {
		while (sent.filter(it => it.kind === kind).length < count) {
			await new Promise(resolve => setImmediate(resolve));
		}
	},
	emit: ({ event, payload, options }) => broker.emit(event, value(payload), value(options)),
	broadcast: ({ event, payload, options }) =>
		broker.broadcast(event, value(payload), value(options)),
	heard: () => heard.splice(0),
	ping({ key, node }) {
		results.set(key, result(broker.ping(node)));
	},
	beat: () => broker.registry.discoverer.sendHeartbeat(),
	announce: () => broker.registry.discoverer.sendLocalNodeInfo(),
	nodes: () => broker.registry.getNodeList({ onlyAvailable: false, withServices: true })
		.map(({ id, available, seq, instanceID, hostname, client, cpu, services }) => ({
			id, available, seq, instanceID, hostname, client, cpu,
			services: services.map(service => service.fullName)
		})),
	actions: () => broker.registry.getActionList({}).map(it => it.name),
	stop: () => broker.stop()
};

async function answer(line) {
	const { command, ...rest } = JSON.parse(line);
	try {
		const answered = await commands[command](rest);
		return { answer: plain(answered) };
	} catch (error) {
		return { failure: String(error && error.stack) };
	}
}

async function main() {
	await broker.start();
	await commands.announce();
	process.stdout.write("{}\n");
	// Whatever a command waits for, nobody is left to hear of it.
	process.stdin.once("end", () => process.exit(0));
	for await (const line of readline.createInterface({ input: process.stdin })) {
		const answered = await answer(line);
		process.stdout.write(JSON.stringify({ ...answered, sent: sent.splice(0) }) + "\n");
	}
	process.exit(0);
}

main();
