"""How fast a CPU serves the built-in model, beside other servers and the floor of torch's own products."""
