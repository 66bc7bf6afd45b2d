// A node of the original system, worked by lines of JSON: what others send it comes in by them,
// and what it sends goes out by them. Usage: node peer.js <serializer>
"use strict";

const { PassThrough } = require("node:stream");
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

async function collect(stream) {
	const chunks = [];
	for await (const chunk of stream) chunks.push(chunk);
	return chunks;
}

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
		},
		fail(ctx) {
			const Class = Errors[ctx.params.name] || TypeError;
			throw new Class(...ctx.params.args);
		},
		async upload(ctx) {
			const chunks = await collect(ctx.stream);
			const isText = chunks.every(Buffer.isBuffer);
			return isText ? Buffer.concat(chunks).toString("hex") : chunks;
		},
		download(ctx) {
			const stream = new PassThrough({ objectMode: !!ctx.params.objects });
			// Later: an error that comes before anybody listens would end this process.
			setTimeout(() => {
				for (const chunk of ctx.params.objects || [Buffer.from(ctx.params.hex, "hex")]) {
					stream.write(chunk);
				}
				if (ctx.params.fails) stream.destroy(new Errors.MoleculerError("torn", 507, "TORN"));
				else stream.end();
			}, 10);
			return stream;
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
		const answer = await promise;
		return { answer: answer && answer.readable ? await collect(answer) : answer };
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
	callWithStream({ key, action, params, chunks, fails, objects }) {
		const stream = new PassThrough({ objectMode: !!objects });
		results.set(key, result(broker.call(action, value(params), { stream })));
		for (const chunk of value(chunks)) stream.write(chunk);
		if (!fails) stream.end();
		else setTimeout(() => stream.destroy(new Errors.MoleculerError("torn", 507, "TORN")), 10);
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
