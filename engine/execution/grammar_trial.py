"""Compiles each grammar first where it can do no harm: in a process that is forked for it and may be killed.

A few bytes of schema can make the library compile for ever, take all memory or overflow its stack, and a
thread cannot be ended. So the engine has a small process with nothing but the tokenizer's tables in it; that
forks a child for each grammar, with limits of time and memory that the kernel holds. Only what passed is
compiled in the engine, and then it is known what that takes. To fork, the process has one thread only.
Start: ``python -P -m engine.execution.grammar_trial SETTINGS``; grammars come as lines of JSON on its input,
verdicts go out on its output. It ends when its input does.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
from llguidance import LLTokenizer

from engine.execution.grammars import (
    STACK_BYTES,
    CompiledGrammar,
    GrammarError,
    TokenizerSource,
    compile_grammar,
    load_tokenizer,
)
from engine.grammar_errors import TOO_LARGE, TOO_SLOW
from engine.messages import Grammar

MAX_GROWTH_BYTES = 128 * 2**20
_WALL_FACTOR = 4  # a busy machine may take so many times as long as the processor does
_NICENESS = 10
_ALARMS = (signal.SIGPROF, signal.SIGALRM)
_PAGE_BYTES = resource.getpagesize()


class TrialSettings(msgspec.Struct, frozen=True):
    """``timeout_s`` is of processor time."""

    source: TokenizerSource
    timeout_s: float


class Verdict(msgspec.Struct, frozen=True):
    """``error`` is None if the grammar may be used; compiled it takes about ``num_bytes``."""

    error: str | None = None
    num_bytes: int = 0


_VERDICTS = msgspec.json.Decoder(Verdict)
_GRAMMARS = msgspec.json.Decoder(Grammar)


# ---- the engine's side -----------------------------------------------------------------------------


class SharedTokenizer:
    """The tokenizer's tables in the engine process, built by the thread that needs them first."""

    def __init__(self, source: TokenizerSource) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None

    def get(self) -> LLTokenizer:
        """Raises GrammarError."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = load_tokenizer(self.source)
            return self._tokenizer


class TrialWorkshop:
    """Compiles in a trial, then for good. One thread's; implements ``grammar_compiler.Workshop``."""

    def __init__(self, tokenizer: SharedTokenizer, timeout_s: float) -> None:
        self._tokenizer = tokenizer
        self._settings = TrialSettings(tokenizer.source, timeout_s)
        self._process: subprocess.Popen[bytes] | None = None

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Raises GrammarError."""
        tokenizer = self._tokenizer.get()
        verdict = self._try(grammar)
        if verdict.error is not None:
            raise GrammarError(verdict.error)
        num_bytes = verdict.num_bytes + len(grammar.text.encode())
        return CompiledGrammar(compile_grammar(tokenizer, grammar), num_bytes)

    def interrupt(self) -> None:
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        if self._process is not None:
            with self._process as process:  # closes the pipes, and waits
                process.kill()
            self._process = None

    def _try(self, grammar: Grammar) -> Verdict:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            self._process = self._launch()
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(grammar) + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = b""
        if not line:  # it cannot end by a grammar's doing, only by somebody else's
            self.close()
            raise GrammarError(TOO_LARGE)
        return _VERDICTS.decode(line)

    def _launch(self) -> subprocess.Popen[bytes]:
        settings = msgspec.json.encode(self._settings).decode()
        return subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # where the library would quote the grammar
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # to fork, it must have one thread only
        )


# ---- the trial process -----------------------------------------------------------------------------


def main(argv: Sequence[str]) -> None:
    """Judge grammars until there are no more."""
    settings = msgspec.json.decode(argv[0], type=TrialSettings)
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in _ALARMS:
        signal.signal(number, signal.SIG_DFL)
    tokenizer = load_tokenizer(settings.source)
    for line in sys.stdin.buffer:
        verdict = _judge(tokenizer, _GRAMMARS.decode(line), settings.timeout_s)
        sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
        sys.stdout.buffer.flush()


def _judge(tokenizer: LLTokenizer, grammar: Grammar, timeout_s: float) -> Verdict:
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        with os.fdopen(sending, "wb") as out:
            _compile_and_tell(tokenizer, grammar, timeout_s, out)
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return Verdict(TOO_SLOW if os.WTERMSIG(status) in _ALARMS else TOO_LARGE)
    return _VERDICTS.decode(told) if told else Verdict(TOO_LARGE)


def _compile_and_tell(tokenizer: LLTokenizer, grammar: Grammar, timeout_s: float, out: BinaryIO) -> None:
    """In the child. An alarm kills it, whatever it is doing; out of memory, the library ends it."""
    signal.setitimer(signal.ITIMER_PROF, timeout_s)
    signal.setitimer(signal.ITIMER_REAL, timeout_s * _WALL_FACTOR)
    resident, writable = _memory()
    most = writable + STACK_BYTES + MAX_GROWTH_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    def work() -> None:
        try:
            matcher = compile_grammar(tokenizer, grammar)
        except GrammarError as error:
            verdict = Verdict(str(error))
        else:
            verdict = Verdict(num_bytes=max(_memory()[0] - resident, 0))
            del matcher
        out.write(msgspec.json.encode(verdict))

    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def _memory() -> tuple[int, int]:
    """Of this process, in bytes: what is in memory, and all that could be written to."""
    pages = Path("/proc/self/statm").read_text().split()
    return int(pages[1]) * _PAGE_BYTES, int(pages[5]) * _PAGE_BYTES


if __name__ == "__main__":
    main(sys.argv[1:])
