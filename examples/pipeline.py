"""A pipeline that accounts for every record: what cannot be processed is kept, with the reason.

Run it with `python -m examples.pipeline`. Here the records are in memory; with a job in a file and
`postroad job run`, they come from files, queues, PostgreSQL, Redis or NATS JetStream, and with
`--spark` the same job runs on Spark.
"""

from postroad import run
from postroad.durable import MemoryStore
from postroad.pipeline import JobBuilder, LocalRunner, MemoryInput, MemoryOutput, Segment

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
    report, large, store = MemoryOutput(), MemoryOutput(), MemoryStore()
    outputs = {"report": report, "large": large}
    runner = LocalRunner(JOB, {"sales": MemoryInput(SALES)}, outputs, store)
    await store.open("sales")
    await runner.run()
    print("report:", report.segments)
    print("large:", large.segments)
    dead = (await runner.coordinator.status()).dead
    print(f"{len(SALES)} sales = {runner.coordinator.counts.acked} acknowledged + {dead} dead")
    await store.close()


if __name__ == "__main__":
    run(main())
