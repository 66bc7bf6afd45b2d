"""Scenario `durable`: nodes post to each other while everything breaks; each message arrives once."""
