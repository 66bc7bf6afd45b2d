"""Scenario `flows`: banks pay each other by flows while everything breaks; all ends, once."""
