"""A directory with ``tokenizer.json`` for the gateway, and the special strings beside it.

Runs on: step thread, once. A Hugging Face directory that has one is used in place. Any other tokenizer
(a GGUF's, a sentencepiece model) is converted once by transformers into the user's cache, under a
fingerprint of its source; a conversion is published by renaming a finished directory, so a second
process or a crash never sees half of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import ConfigError
from engine.loading.checkpoint import Checkpoint
from engine.loading.hf_config import read_json

_FORMAT = 2
_SPECIAL = "special.json"
_FINGERPRINT_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """``directory`` holds ``tokenizer.json``."""

    directory: Path
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None


def prepare_tokenizer(checkpoint: Checkpoint) -> TokenizerFiles:
    """Find or make the checkpoint's tokenizer. Raises ConfigError."""
    path = checkpoint.path
    if not checkpoint.is_gguf and (path / "tokenizer.json").exists():
        return _from_directory(path)
    directory = cache_root() / f"{_fingerprint(path)}-{_FORMAT}"
    if not _is_whole(directory):
        directory = _convert(path, directory)
    special = read_json(directory / _SPECIAL)
    return TokenizerFiles(directory, special["chat_template"], special["bos_token"], special["eos_token"])


def cache_root() -> Path:
    """Where conversions are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "tidegate" / "tokenizers"


def _from_directory(path: Path) -> TokenizerFiles:
    config_path = path / "tokenizer_config.json"
    config = read_json(config_path) if config_path.exists() else {}
    return TokenizerFiles(
        path,
        _chat_template(path, config),
        _special_text(config.get("bos_token")),
        _special_text(config.get("eos_token")),
    )


def _chat_template(path: Path, config: Mapping[str, Any]) -> str | None:
    if (path / "chat_template.jinja").exists():
        return _read_text(path / "chat_template.jinja")
    template = config.get("chat_template")
    if template is None and (path / "chat_template.json").exists():
        template = read_json(path / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        entries = [entry for entry in template if isinstance(entry, dict)]
        template = next((entry.get("template") for entry in entries if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error


def _special_text(value: Any) -> str | None:
    """A special token is written as a string, or as an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _fingerprint(path: Path) -> str:
    """Of a GGUF file's size and beginning, where its tokenizer is, or of a directory's tokenizer files."""
    digest = hashlib.blake2b(digest_size=16)
    if path.is_file():
        digest.update(path.stat().st_size.to_bytes(8, "little"))
        with path.open("rb") as file:
            digest.update(file.read(_FINGERPRINT_BYTES))
    else:
        for source in sorted(file for file in path.iterdir() if _may_shape_tokenizer(file)):
            content = source.read_bytes()
            digest.update(f"{source.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _may_shape_tokenizer(file: Path) -> bool:
    """Everything small: vocabularies and merges have many names, and weights none that would fit."""
    return file.is_file() and file.stat().st_size <= _FINGERPRINT_BYTES and file.suffix != ".safetensors"


def _convert(source: Path, target: Path) -> Path:
    """Convert into ``target``, or into a temporary directory if the cache cannot be written."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=target.parent, prefix=".converting-"))
    except OSError:
        target = work = Path(tempfile.mkdtemp(prefix="tidegate-tokenizer-"))
    try:
        _write_tokenizer(source, work)
        if work != target:
            _publish(work, target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return target


def _publish(work: Path, target: Path) -> None:
    """Put a finished conversion in place of a damaged one; a whole one that came first stays."""
    if not _is_whole(target):
        shutil.rmtree(target, ignore_errors=True)
    try:
        work.rename(target)
    except OSError:
        shutil.rmtree(work, ignore_errors=True)
        if not _is_whole(target):
            raise


def _is_whole(directory: Path) -> bool:
    """Whether a conversion is there, with the tokenizer as long as it was written."""
    try:
        special = json.loads((directory / _SPECIAL).read_text(encoding="utf-8"))
        return bool((directory / "tokenizer.json").stat().st_size == special["tokenizer_bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write_tokenizer(source: Path, work: Path) -> None:
    from transformers import AutoTokenizer

    try:
        if source.is_file():
            tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        else:
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        tokenizer.backend_tokenizer.save(str(work / "tokenizer.json"))
    except Exception as error:  # transformers raises all kinds for a tokenizer it cannot read
        advice = "" if source.is_file() else "; save it there as a tokenizer.json"
        raise ConfigError(f"The tokenizer of {source} cannot be converted{advice}.") from error
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    special = {
        "chat_template": template,
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "tokenizer_bytes": (work / "tokenizer.json").stat().st_size,
    }
    (work / _SPECIAL).write_text(json.dumps(special), encoding="utf-8")
