"""What servers tell about themselves, on whatever pages they have.

Runs on the event loop. A page that is not there, or says something else, is no error: what it would have
told stays unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import aiohttp

from loadtest.drivers.base import ServerUnreachableError
from loadtest.drivers.session import reason_of
from loadtest.drivers.target import Target
from loadtest.drivers.vocabulary import Vocabulary, VocabularyError

_PATIENCE_S = 30
_KINDS = {"tidegate": "tidegate", "vllm": "vllm", "llamacpp": "llama.cpp"}
_UNREADABLE = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Facts:
    """``kind``: tidegate, vllm, llama.cpp, or unknown. ``models``: all that are named."""

    kind: str
    version: str
    model: str
    models: tuple[str, ...]
    max_model_len: int | None


class ServerPages:
    """An HTTP client for everything but what is measured. It takes keys and headers nowhere else."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._url = target.address.url

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=_PATIENCE_S)
        self._http = aiohttp.ClientSession(timeout=timeout, headers=dict(self._target.headers))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def facts(self) -> Facts:
        """Raises ServerUnreachableError."""
        cards = await self._models()
        names = tuple(str(card["id"]) for card in cards if "id" in card)
        model = self._target.model or (names[0] if names else "")
        if not model:
            raise ServerUnreachableError(f"{self._url} names no model; say which one to ask (--model).")
        card = next((card for card in cards if card.get("id") == model), cards[0] if cards else {})
        kind = _KINDS.get(str(card.get("owned_by")), "unknown")
        props = await self.get("/props") if kind == "llama.cpp" else {}
        window = card.get("max_model_len") or _path(props, "default_generation_settings", "n_ctx")
        version = props.get("build_info") or (await self.get("/version")).get("version")
        return Facts(
            kind,
            str(version or ""),
            model,
            names,
            window if isinstance(window, int) and window > 0 else None,
        )

    async def vocabulary(self, facts: Facts) -> Vocabulary | None:
        """The server's own tokenizer, if it lends it."""
        for shape in (PromptShape(facts.model), ContentShape()):
            found = ServerVocabulary(self, shape)
            try:
                if await found.tokens("a\n"):
                    return found
            except VocabularyError:
                continue
        return None

    async def get(self, path: str) -> Json:
        """The object at a path; empty if there is none."""
        try:
            async with self._http.get(self._url + path, allow_redirects=False) as answer:
                found = await answer.json(content_type=None) if answer.status == 200 else {}
        except _UNREADABLE:
            return {}
        return found if isinstance(found, dict) else {}

    async def post(self, path: str, body: Json) -> Json:
        """What is answered; empty if it is refused."""
        try:
            async with self._http.post(self._url + path, json=body, allow_redirects=False) as answer:
                found = await answer.json(content_type=None) if answer.status == 200 else {}
        except _UNREADABLE:
            return {}
        return found if isinstance(found, dict) else {}

    async def _models(self) -> list[Json]:
        try:
            async with self._http.get(self._url + "/v1/models", allow_redirects=False) as answer:
                if answer.status in (401, 403):
                    raise ServerUnreachableError(
                        f"{self._url} wants an API key, or another one (http {answer.status})."
                    )
                if (elsewhere := answer.headers.get("location")) and 300 <= answer.status < 400:
                    raise ServerUnreachableError(
                        f"{self._url} sends clients to {elsewhere}; give --base-url as it is there."
                    )
                found = await answer.json(content_type=None) if answer.status == 200 else {}
        except (aiohttp.ClientConnectionError, aiohttp.ClientResponseError, TimeoutError) as error:
            raise ServerUnreachableError(f"Nothing answers at {self._url}: {_reason(error)}.") from None
        except _UNREADABLE:
            return []
        cards = found.get("data") if isinstance(found, dict) else None
        return [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []


def _reason(error: Exception) -> str:
    """In the words that a timeline has for it."""
    if isinstance(error, TimeoutError):
        return f"no answer within {_PATIENCE_S} s"
    return reason_of(error)


def _path(found: Any, *names: str) -> Any:
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


# ---- the server's tokenizer --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PromptShape:
    """As tidegate and vLLM have it."""

    model: str

    def tokenize(self, text: str) -> Json:
        return {"model": self.model, "prompt": text, "add_special_tokens": False}

    def detokenize(self, tokens: Sequence[int]) -> Json:
        return {"model": self.model, "tokens": list(tokens)}

    def text(self, answer: Json) -> Any:
        return answer.get("prompt")


@dataclass(frozen=True, slots=True)
class ContentShape:
    """As llama.cpp has it."""

    def tokenize(self, text: str) -> Json:
        return {"content": text, "add_special": False}

    def detokenize(self, tokens: Sequence[int]) -> Json:
        return {"tokens": list(tokens)}

    def text(self, answer: Json) -> Any:
        return answer.get("content")


class ServerVocabulary:
    """Implements Vocabulary."""

    def __init__(self, pages: ServerPages, shape: PromptShape | ContentShape) -> None:
        self._pages = pages
        self._shape = shape

    async def tokens(self, text: str) -> list[int]:
        answer = await self._pages.post("/tokenize", self._shape.tokenize(text))
        tokens = answer.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise VocabularyError("The server does not say which tokens a text has.")
        return tokens

    async def text(self, tokens: Sequence[int]) -> str:
        text = self._shape.text(await self._pages.post("/detokenize", self._shape.detokenize(tokens)))
        return text if isinstance(text, str) else ""
