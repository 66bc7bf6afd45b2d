// A node of the original system that speaks TCP to others, worked by lines of JSON.
// Usage: node tcp_broker.js <node> <serializer> <namespace> <options of the transporter as JSON>
"use strict";

const readline = require("node:readline");
const { ServiceBroker } = require("moleculer");

const [nodeID, serializer, namespace, options] = process.argv.slice(2);
const told = [];

const broker = new ServiceBroker({
	nodeID,
	namespace,
	logger: false,
	serializer,
	transporter: { type: "TCP", options: JSON.parse(options) },
	skipProcessEventRegistration: true,
	registry: { stopDelay: 0 }
});

function note(ctx) {
	const { node, ...rest } = ctx.params;
	told.push({ event: ctx.eventName, node: node.id, ...rest });
}

broker.createService({
	name: "watcher",
	actions: { echo: ctx => ctx.params },
	events: { "$node.connected": note, "$node.updated": note, "$node.disconnected": note }
});

const commands = {
	nodes: () => broker.registry.getNodeList({ onlyAvailable: false, withServices: true })
		.map(({ id, available, seq, cpu, port, services }) => ({
			id, available, seq, cpu, port,
			services: (services || []).map(service => service.name)
		})),
	told: () => told,
	port: () => broker.transit.tx.opts.port,
	offer: ({ name }) => {
		broker.createService({ name, actions: { run: () => name } });
	},
	call: ({ action, params, nodeID }) => broker.call(action, params, { nodeID, timeout: 10000 }),
	ping: ({ node }) => broker.ping(node),
	stop: () => broker.stop()
};

async function main() {
	await broker.start();
	process.stdout.write("{}\n");
	process.stdin.once("end", () => process.exit(0));
	for await (const line of readline.createInterface({ input: process.stdin })) {
		const { command, ...rest } = JSON.parse(line);
		let answer;
		try {
			answer = { answer: await commands[command](rest) };
		} catch (error) {
			answer = { failure: String(error && error.stack) };
		}
		process.stdout.write(JSON.stringify(answer) + "\n");
	}
	process.exit(0);
}

main();
