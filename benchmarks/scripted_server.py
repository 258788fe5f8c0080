"""A gateway over the scripted engine at a fixed pace, as a process of its own.

``python -m benchmarks.scripted_server STEP_S`` reads what its engine is to be taken for, prints its port, and
serves until its input ends. Every request gets tokens without end. Like a real gateway it has no torch in its
process. The one benchmark that imports the gateway: all others know a server by HTTP only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Iterator

import msgspec
import uvloop

from benchmarks.child import Child, child
from engine.messages import EngineInfo
from engine.scripted import Script, ScriptedEngine
from gateway.app import serve
from gateway.listeners import bound_listeners
from gateway.state import GatewaySettings

_WINDOW = 400_000
_MAX_NUM_SEQS = 64
_MAX_WAITING = 2000
_WORD = 1194  # any token of plain text


async def _serve(info: EngineInfo, step_s: float) -> None:
    script = Script(token_ids=(_WORD,), endless=True)
    engine = ScriptedEngine(info, lambda request: script, step_s=step_s, max_num_seqs=_MAX_NUM_SEQS)
    settings = GatewaySettings(max_num_seqs=_MAX_NUM_SEQS, max_waiting=_MAX_WAITING, drain_timeout_s=0.0)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    try:
        with bound_listeners(settings.host, 0, settings.send_buffer_bytes) as listeners:
            port = listeners[0].getsockname()[1]
            await serve(engine, settings, listeners, stop, lambda: print(port, flush=True))
    finally:
        await engine.close()


def builtin_info() -> EngineInfo:
    """As if the built-in model had been loaded, with a large window. Loads torch."""
    from engine.loading.checkpoint import open_checkpoint
    from engine.loading.tokenizer import prepare_tokenizer

    checkpoint = open_checkpoint("", "auto", 0)
    tokenizer = prepare_tokenizer(checkpoint)
    return EngineInfo(
        model_name="scripted", architecture="LlamaForCausalLM", device="cpu", dtype="float32",
        num_parameters=1, vocab_size=checkpoint.config.vocab_size, max_model_len=_WINDOW, block_size=16,
        num_blocks=10**7, kv_bytes=1, weight_bytes=1, memory_total_bytes=1, memory_available_bytes=1,
        threads=1, attention_backend="scripted", tokenizer_dir=str(tokenizer.directory),
        chat_template=tokenizer.chat_template, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token,
        stop_token_ids=(2,),
    )  # fmt: skip


@contextlib.contextmanager
def scripted_server(step_s: float) -> Iterator[int]:
    """Serve in a process of its own until the scope ends; gives the port."""
    with scripted_process(step_s) as server:
        yield server.port


@contextlib.contextmanager
def scripted_process(step_s: float) -> Iterator[Child]:
    """The same; gives the process too."""
    line = msgspec.json.encode(builtin_info())
    with child("benchmarks.scripted_server", (str(step_s),), line, patience_s=30) as process:
        yield process


if __name__ == "__main__":
    logging.basicConfig(level="ERROR")
    described = msgspec.json.decode(sys.stdin.readline(), type=EngineInfo)
    uvloop.run(_serve(described, float(sys.argv[1])))
