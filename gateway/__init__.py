"""The HTTP side: an OpenAI-compatible API that streams what an engine generates. Imports no torch."""
