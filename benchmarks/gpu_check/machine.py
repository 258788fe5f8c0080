"""What is measured on: card, driver and versions. What cannot be found out is left out."""

from __future__ import annotations

import contextlib
import platform
import shutil
import subprocess
from importlib import metadata

import torch

_PACKAGES = ("torch", "triton", "numpy", "transformers", "msgspec")
_QUERY_TIMEOUT_S = 10.0


def facts_of(device: torch.device) -> dict[str, str]:
    """By name, for people: card, memory, multiprocessors, driver, CUDA, packages."""
    facts = {"python": platform.python_version(), "system": platform.platform()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            facts[name] = metadata.version(name)
    return {**facts, **_card(device)} if device.type == "cuda" else {**facts, "card": "none"}


def _card(device: torch.device) -> dict[str, str]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "card": properties.name,
        "memory": f"{properties.total_memory / 2**30:.1f} GiB",
        "multiprocessors": str(properties.multi_processor_count),
        "compute capability": f"{properties.major}.{properties.minor}",
        "CUDA of torch": str(torch.version.cuda),
        **_from_driver(),
    }


def _from_driver() -> dict[str, str]:
    """Driver and power limit, if its own tool is there and answers."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    query = [tool, "--query-gpu=driver_version,power.limit", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        ended = subprocess.run(query, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=True)
        first = ended.stdout.strip().splitlines()[0].split(",")
        return dict(zip(("driver", "power limit"), (field.strip() for field in first), strict=False))
    return {}
