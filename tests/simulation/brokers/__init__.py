"""Scenario `brokers`: whole brokers with services, over cells, under faults of all kinds."""
