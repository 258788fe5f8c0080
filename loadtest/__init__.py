"""The load test. Only ``loadtest.simulate`` knows the engine, its deciding half, from inside."""
