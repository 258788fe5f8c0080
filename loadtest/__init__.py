"""The load test. Reserved: its package name is taken, and nothing is in it yet."""
