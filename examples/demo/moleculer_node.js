// A node of Moleculer that meets one of Postroad: it answers calls and hears events, and on a line
// of its input calls and emits by itself. The end of its input ends it.
// Usage: node moleculer_node.js <URL of the NATS server> <how many calls> <how many events>
"use strict";

const readline = require("node:readline");
const { ServiceBroker } = require("moleculer");

const [url, calls, events] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const HEAR_MS = 5000;

let heard = 0;
let onHeard = () => {};

const broker = new ServiceBroker({ nodeID: "moleculer", transporter: url, logger: false });
broker.createService({
	name: "rates",
	actions: {
		convert: {
			params: { cents: "number" },
			handler: ctx => ({ cents: ctx.params.cents * 2, customer: ctx.meta.customer })
		}
	},
	events: {
		"teller.asked"() {
			if (++heard === events) onHeard();
		}
	}
});

async function play() {
	let answered = 0;
	for (let number = 1; number <= calls; number++) {
		const meta = { customer: `customer-${number}` };
		const reply = await broker.call("teller.total", { cents: number, count: 3 }, { meta });
		answered += reply.cents === 3 * number && reply.customer === meta.customer;
	}
	for (let number = 1; number <= events; number++) await broker.emit("moleculer.asked", { number });
	return answered;
}

// What the other side emits may come later than our own work is done.
function hearAll() {
	if (heard >= events) return Promise.resolve();
	return new Promise(resolve => {
		onHeard = resolve;
		setTimeout(resolve, HEAR_MS).unref();
	});
}

async function main() {
	const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
	await broker.start();
	await broker.waitForServices("teller");
	await lines.next();
	const answered = await play();
	await hearAll();
	const versions = `Moleculer ${broker.MOLECULER_VERSION} on Node.js ${process.versions.node}`;
	console.log(JSON.stringify({ versions, called: calls, answered, emitted: events, heard }));
	await lines.next();
	await broker.stop();
}

process.stdin.on("end", () => setTimeout(() => process.exit(0), 1000).unref());
main().then(() => process.exit(0), error => {
	console.error(error);
	process.exit(1);
});
