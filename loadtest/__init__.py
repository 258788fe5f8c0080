"""The load test: replays lengths and measures; ``loadtest.simulate`` drives the engine's deciding half
itself.
"""
