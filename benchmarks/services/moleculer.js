// Moleculer's side of the benchmark: node moleculer.js serve|client '<job as JSON>'
"use strict";
const { ServiceBroker } = require("moleculer");

const [role, text] = process.argv.slice(2);
const job = JSON.parse(text);
const nodeID = role === "serve" ? "server" : "client";

function transporter() {
	if (job.transporter === "nats") return `nats://${job.address}`;
	const [server, client] = job.address.split(",");
	return {
		type: "TCP",
		options: {
			udpDiscovery: false,
			port: Number(role === "serve" ? server : client),
			urls: [`tcp://127.0.0.1:${server}/server`, `tcp://127.0.0.1:${client}/client`],
			useHostname: false
		}
	};
}

const broker = new ServiceBroker({
	nodeID, namespace: "benchmark", transporter: transporter(), logger: false, validator: false
});

function addServices() {
	const heard = Array(job.groups).fill(0);
	broker.createService({
		name: "math",
		actions: { add: ctx => ctx.params.a + ctx.params.b }
	});
	broker.createService({
		name: "counter",
		actions: { heard: () => heard.reduce((sum, it) => sum + it, 0) }
	});
	for (let number = 0; number < job.groups; number++) {
		broker.createService({
			name: `listener-${number}`,
			events: { "thing.happened": () => { heard[number] += 1; } }
		});
	}
}

const pause = seconds => new Promise(resolve => setTimeout(resolve, seconds * 1000));
const now = () => Number(process.hrtime.bigint()) / 1e9;

async function calls() {
	let completed = 0, isOver = false;
	async function work() {
		while (!isOver) {
			if (await broker.call("math.add", { a: 5, b: 3 }) !== 8) throw new Error("wrong result");
			completed += 1;
		}
	}
	const workers = Array.from({ length: job.inFlight }, work);
	await pause(job.warmup);
	const before = completed, start = now();
	await pause(job.seconds);
	const rate = (completed - before) / (now() - start);
	isOver = true;
	await Promise.all(workers);
	return rate;
}

async function emitFor(seconds, emitted) {
	const deadline = now() + seconds;
	while (now() < deadline) {
		for (let number = 0; number < job.inFlight; number++) {
			await broker.emit("thing.happened", { n: emitted });
			emitted += 1;
		}
		while (await broker.call("counter.heard") < emitted * job.groups);
	}
	return emitted;
}

async function events() {
	const emitted = await emitFor(job.warmup, 0);
	const start = now();
	const after = await emitFor(job.seconds, emitted);
	return (after - emitted) * job.groups / (now() - start);
}

async function main() {
	if (role === "serve") addServices();
	await broker.start();
	if (role === "serve") {
		console.log(JSON.stringify("ready"));
		return;
	}
	const names = ["math", "counter"];
	for (let number = 0; number < job.groups; number++) names.push(`listener-${number}`);
	await broker.waitForServices(names, 30000);
	console.log(JSON.stringify(await (job.workload === "call" ? calls() : events())));
	process.exit(0);
}

main().catch(error => { console.error(error); process.exit(1); });
