// Reads an AsyncAPI document from its input, and prints what the official parser has against it.

const { Parser } = require("@asyncapi/parser");

async function main() {
  const text = require("fs").readFileSync(0, "utf-8");
  const { document, diagnostics } = await new Parser().parse(text);
  const operations = document ? document.operations().all() : [];
  console.log(
    JSON.stringify({
      errors: diagnostics.filter((each) => each.severity === 0).map((each) => each.message),
      operations: operations.map((each) => `${each.action()} ${each.channels().all()[0].address()}`),
    }),
  );
}

main();
