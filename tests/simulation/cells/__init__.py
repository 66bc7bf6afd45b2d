"""Scenario `cells`: domains that come and go, their cells, and messages all the time."""
