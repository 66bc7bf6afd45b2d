// Two nodes of the original system that speak TCP to each other; prints what they send until each
// kind of gossip was there. Usage: node gossip.js <serializer> <port> <port>
"use strict";

const { ServiceBroker } = require("moleculer");

const [serializer, ...ports] = process.argv.slice(2);
const urls = ports.map((port, number) => `tcp://127.0.0.1:${port}/gossip-${number}`);
const seen = new Set();

const recorder = {
	transporterSend: next => (topic, data, meta) => {
		const kind = meta.packet.type;
		process.stdout.write(JSON.stringify({ kind, hex: data.toString("hex") }) + "\n");
		seen.add(kind);
		if (["GOSSIP_HELLO", "GOSSIP_REQ", "GOSSIP_RES"].every(it => seen.has(it))) {
			process.stdout.write("", () => process.exit(0));
		}
		return next(topic, data, meta);
	}
};

for (const number of ports.keys()) {
	const broker = new ServiceBroker({
		nodeID: `gossip-${number}`,
		logger: false,
		serializer,
		transporter: {
			type: "TCP",
			options: { udpDiscovery: false, urls, gossipPeriod: 1, useHostname: false }
		},
		middlewares: [recorder],
		skipProcessEventRegistration: true
	});
	broker.createService({ name: `talker-${number}`, actions: { hello: () => "hello" } });
	broker.start();
}
