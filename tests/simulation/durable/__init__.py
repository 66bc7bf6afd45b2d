"""Scenario `durable`: nodes post to each other while everything breaks; all arrives, once."""
