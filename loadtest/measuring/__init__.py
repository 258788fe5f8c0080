"""Carries a measurement out: one run, its repeats, a sweep or a comparison of them, and what watches it."""
