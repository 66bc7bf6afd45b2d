"""A pipeline that accounts for every record: what cannot be processed is kept, with the reason.

Run it with `python -m examples.pipeline`. Here the records are in memory; with a job in a file and
`postroad job run`, they come from files, queues, PostgreSQL, Redis or NATS JetStream, and with
`--spark` the same job runs on Spark.
"""

import asyncio

from postroad.pipeline import JobBuilder, MemoryInput, MemoryOutput, Segment, run

PRICES = {"tea": 4, "cake": 6}
SALES = [{"item": "tea", "count": 2}, {"item": "pie", "count": 1}, {"item": "cake", "count": 3}]


def price(sale: Segment) -> Segment:
    return {**sale, "amount": PRICES[sale["item"]] * sale["count"]}


def is_large(new: Segment, old: Segment) -> bool:
    return bool(new["amount"] > 10)


JOB = (
    JobBuilder("sales")
    .input("sales", connector="memory", retry={"attempts": 2, "first_s": 0.01})
    .function("price", price)
    .output("report", connector="memory")
    .output("large", connector="memory", after="price")
    .route("price", to="report")
    .route("price", to="large", predicate=is_large)
    .build()
)


async def main() -> None:
    outputs = {"report": MemoryOutput(), "large": MemoryOutput()}
    result = await run(JOB, inputs={"sales": MemoryInput(SALES)}, outputs=outputs)
    print("report:", outputs["report"].segments)
    print("large:", outputs["large"].segments)
    print(f"{len(SALES)} sales = {result.acked} acknowledged + {result.dead} dead")


if __name__ == "__main__":
    asyncio.run(main())
