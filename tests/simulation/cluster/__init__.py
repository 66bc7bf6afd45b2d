"""Scenario `cluster`: whole nodes join, fail and come back; in the end all must agree."""
