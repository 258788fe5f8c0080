"""What the GPU engine reaches, beside what the card can do: ``python -m benchmarks.gpu_check``."""
