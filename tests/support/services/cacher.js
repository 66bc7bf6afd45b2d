// A node with results kept in Redis, by the cacher of the original system.
//
// node cacher.js URL NAMESPACE: makes the calls that it reads, one JSON array of action, params and
// meta in each line, and prints the result of each in a line. Results are {"js": <count>}.
"use strict";

const readline = require("readline");
const { ServiceBroker } = require("moleculer");

const [url, namespace] = process.argv.slice(2);
const broker = new ServiceBroker({
	namespace,
	logger: false,
	cacher: { type: "Redis", options: { redis: url } },
});

let runs = 0;
const handler = () => ({ js: ++runs });
broker.createService({
	name: "posts",
	actions: {
		find: { cache: true, handler },
		get: { cache: { keys: ["id", "#user"] }, handler },
	},
});

async function main() {
	await broker.start();
	while (!broker.cacher.connected) await new Promise(resolve => setTimeout(resolve, 5));
	for await (const line of readline.createInterface({ input: process.stdin })) {
		const [action, params, meta] = JSON.parse(line);
		if (action === "clean") await broker.cacher.clean(params);
		const result = action === "clean" ? null : await broker.call(action, params, { meta });
		console.log(JSON.stringify(result));
	}
	await broker.stop();
}

main();
