"""Scenario `services`: nodes of services in domains of cells, under faults of all kinds."""
