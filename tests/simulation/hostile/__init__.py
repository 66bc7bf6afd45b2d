"""Scenario `hostile`: somebody on the network forges, floods, replays and claims names."""
