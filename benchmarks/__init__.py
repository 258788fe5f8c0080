"""Benchmarks of the engine's tiers: each is a command that prints one table and can write it as JSON."""
