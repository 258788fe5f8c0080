"""Compiles kernel variants for GPUs that are not there: ``python -m tests.support.compile_kernels``.

Reads ``[[registry, variant, capability], ...]`` as JSON, a registry being ``module:function`` with a
function that gives variants, and writes what came of each. It is a process of its own because whoever
imports a kernel decides, by ``TRITON_INTERPRET``, whether it is compiled or interpreted.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernels.launch import KernelVariant

_WARP_SIZE = 32
# A product whose result is laid out for no tensor core, in the last of the compiler's own languages.
_PLAIN_PRODUCT = re.compile(r"\btt\.dot\b[^\n]*-> tensor<[^\n]*#blocked")


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


@functools.cache
def _variants(registry: str) -> dict[str, KernelVariant]:
    variants = {variant.name: variant for variant in _named(registry)()}
    assert len(variants) == len(_named(registry)()), f"{registry} has two variants of one name"
    return variants


def _source(variant: KernelVariant) -> ASTSource:
    """The kernel with types and constants as a launch would find them."""
    kernel = _named(variant.kernel)
    constants = dict(variant.launch.constants)
    constants |= {name: None for name, kind in variant.arguments.items() if kind is None}
    arguments = {name: kind for name, kind in variant.arguments.items() if kind is not None}
    given, wanted = {*constants, *arguments}, set(kernel.arg_names)
    assert given == wanted, f"{variant.name}: {sorted(given ^ wanted)} are not both wanted and given"
    signature = {name: arguments.get(name, "constexpr") for name in kernel.arg_names}
    attributes = {
        (parameter.num,): [["tt.divisibility", 16]]
        for parameter in kernel.params
        if signature[parameter.name].startswith("*") and not parameter.do_not_specialize_on_alignment
    }
    return ASTSource(kernel, signature, constants, attributes)


def _resources(cubin: bytes) -> dict[str, int]:
    """Registers of a thread and bytes of its stack and local memory, as the driver will see them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        text = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}


def compile_variant(variant: KernelVariant, capability: int) -> dict[str, object]:
    """What ``tests.support.compiled_kernels.Compiled`` has of one variant."""
    target = GPUTarget("cuda", capability, _WARP_SIZE)
    compiled = triton.compile(_source(variant), target=target, options=variant.launch.options())
    resources = _resources(compiled.asm["cubin"])
    return {
        "registers": resources["REG"],
        "stack_bytes": resources["STACK"],
        "local_bytes": resources["LOCAL"],
        "shared_bytes": compiled.metadata.shared,
        "plain_products": len(_PLAIN_PRODUCT.findall(compiled.asm["ttgir"])),
        "ptx": compiled.asm["ptx"],
    }


def main() -> None:
    wanted = json.load(sys.stdin)
    results = [compile_variant(_variants(registry)[name], target) for registry, name, target in wanted]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
