"""The events of three APIs, as the scripted server writes them. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Counts:
    """``completion``: of all choices."""

    prompt: int
    completion: int

    def as_json(self) -> dict[str, Any]:
        total = self.prompt + self.completion
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": total,
            "prompt_tokens_details": {"cached_tokens": 0},
        }


class Events(Protocol):
    """Data of events, which are JSON or a mark."""

    def opening(self) -> list[bytes]: ...

    def piece(self, choice: int, text: str, so_far: Counts) -> bytes: ...

    def failure(self, code: str) -> list[bytes]: ...

    def closing(self, num_choices: int, counts: Counts) -> list[bytes]: ...


class ChunkEvents:
    """Chats and completions."""

    def __init__(self, *, is_chat: bool, options: dict[str, Any], tells_usage: bool) -> None:
        self._is_chat = is_chat
        self._tells_usage = tells_usage and bool(options.get("include_usage"))
        self._tells_so_far = self._tells_usage and bool(options.get("continuous_usage_stats"))

    def opening(self) -> list[bytes]:
        return [self._chunk(0, {"role": "assistant", "content": ""})] if self._is_chat else []

    def piece(self, choice: int, text: str, so_far: Counts) -> bytes:
        return self._chunk(choice, {"content": text}, so_far=so_far if self._tells_so_far else None)

    def failure(self, code: str) -> list[bytes]:
        error = {"message": "as scripted", "type": "server_error", "code": code}
        return [_dumps({"error": error}), b"[DONE]"]

    def closing(self, num_choices: int, counts: Counts) -> list[bytes]:
        events = [self._chunk(choice, {}, finish="length") for choice in range(num_choices)]
        if self._tells_usage:
            events.append(_dumps({"id": "answer", "choices": [], "usage": counts.as_json()}))
        return [*events, b"[DONE]"]

    def _chunk(
        self, choice: int, delta: dict[str, str], finish: str | None = None, so_far: Counts | None = None
    ) -> bytes:
        what = {"delta": delta} if self._is_chat else {"text": delta.get("content", "")}
        chunk: dict[str, Any] = {
            "id": "answer",
            "choices": [{"index": choice, **what, "finish_reason": finish}],
        }
        if so_far is not None:
            chunk["usage"] = so_far.as_json()
        return _dumps(chunk)


class ResponseEvents:
    """Responses."""

    def __init__(self, response_id: str, *, tells_usage: bool) -> None:
        self._id = response_id
        self._tells_usage = tells_usage

    def opening(self) -> list[bytes]:
        return [_dumps({"type": "response.created", "response": {"id": self._id, "status": "in_progress"}})]

    def piece(self, choice: int, text: str, so_far: Counts) -> bytes:
        return _dumps({"type": "response.output_text.delta", "delta": text})

    def failure(self, code: str) -> list[bytes]:
        error = {"code": code, "message": "as scripted"}
        response = {"id": self._id, "status": "failed", "error": error}
        return [_dumps({"type": "response.failed", "response": response})]

    def closing(self, num_choices: int, counts: Counts) -> list[bytes]:
        response: dict[str, Any] = {
            "id": self._id,
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
        }
        if self._tells_usage:
            response["usage"] = {
                "input_tokens": counts.prompt,
                "output_tokens": counts.completion,
                "input_tokens_details": {"cached_tokens": 0},
            }
        return [_dumps({"type": "response.incomplete", "response": response})]


def _dumps(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
