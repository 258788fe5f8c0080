"""Parameters that change no answer here: accepted as OpenAI documents them, and none of them large.

Pure; runs on offload threads. Of completions and chats nothing is stored, whatever ``store`` says; a
prediction only promises speed.
"""

from __future__ import annotations

from gateway.errors import bad_request
from gateway.openai.ranges import (
    MAX_METADATA,
    MAX_METADATA_KEY,
    MAX_METADATA_VALUE,
    MAX_NAME_CHARS,
)
from gateway.openai.wire import SamplingFields

_NAMES = ("user", "safety_identifier", "prompt_cache_key")


def check_harmless(wire: SamplingFields) -> None:
    """Raises ApiError naming the first bad field."""
    for name in _NAMES:
        if len(getattr(wire, name) or "") > MAX_NAME_CHARS:
            raise bad_request(name, f"'{name}' must have at most {MAX_NAME_CHARS} characters.")
    check_metadata(wire.metadata or {})
    prediction = getattr(wire, "prediction", None)
    if prediction is not None and prediction.type != "content":
        raise bad_request("prediction", "'prediction' must be an object of type \"content\".")


def check_metadata(metadata: dict[str, str]) -> None:
    """Raises ApiError."""
    if len(metadata) > MAX_METADATA:
        raise bad_request("metadata", f"'metadata' must not have more than {MAX_METADATA} entries.")
    longest_key = max(map(len, metadata), default=0)
    longest_value = max(map(len, metadata.values()), default=0)
    if longest_key > MAX_METADATA_KEY or longest_value > MAX_METADATA_VALUE:
        raise bad_request(
            "metadata",
            f"'metadata' must have keys of at most {MAX_METADATA_KEY} and values of at most"
            f" {MAX_METADATA_VALUE} characters.",
        )
