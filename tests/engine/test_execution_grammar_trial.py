"""No grammar, however evil, outlives its time or takes the engine's memory or stack with it."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from engine.execution.grammar_trial import SharedTokenizer, TrialWorkshop, Verdict
from engine.execution.grammars import STACK_BYTES, GrammarError, TokenizerSource
from engine.grammar_errors import TOO_LARGE, TOO_SLOW
from engine.messages import Grammar
from tests.support.tiny_tokenizers import byte_level, save

Result = TypeVar("Result")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialWorkshop]:
    directory = save(byte_level(), tmp_path_factory.mktemp("tokenizer"))
    made = TrialWorkshop(SharedTokenizer(TokenizerSource(directory, 300, (266,))), timeout_s=1.0)
    yield made
    made.close()


def on_a_large_stack(work: Callable[[], Result]) -> Result:
    """As on a compile thread."""
    found: list[Result] = []
    before = threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    threading.stack_size(before)
    thread.join()
    return found[0]


def judge(workshop: TrialWorkshop, kind: str, text: str) -> str | None:
    """Why a grammar is refused; None if it is not."""

    def work() -> str | None:
        try:
            workshop.compile(Grammar(kind, text))  # type: ignore[arg-type]
        except GrammarError as error:
            return str(error)
        return None

    return on_a_large_stack(work)


def schema(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def chain(length: int) -> str:
    """Definitions that refer to each other: shallow as text, deep to whoever follows them."""
    links = {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(length)}
    return schema({"$defs": {**links, f"d{length}": {"type": "string"}}, "$ref": "#/$defs/d0"})


def nested_items(total: int, each: int = 40) -> str:
    """As deep as 64 KiB of schema can get."""
    count = total // each
    links = ",".join(
        f'"{i}":' + '{"items":' * each + f'{{"$ref":"#/$defs/{i + 1}"}}' + "}" * each for i in range(count)
    )
    return f'{{"$defs":{{{links},"{count}":{{}}}},"$ref":"#/$defs/0"}}'


def test_a_good_one_passes_and_the_same_process_serves_on(workshop: TrialWorkshop) -> None:
    assert judge(workshop, "json_schema", '{"type":"object"}') is None
    process = workshop._process
    assert process is not None
    assert judge(workshop, "regex", "a+") is None
    assert workshop._process is process


MANY_MULTIPLES = {f"p{i}": {"type": "integer", "multipleOf": 9001 + 2 * i} for i in range(500)}
ONE_MULTIPLE_OF_ALL = [{"type": "integer", "multipleOf": m} for m in (101, 103, 107, 109)]
MANY_CASES = [{"oneOf": [{"properties": {f"{name}{i}": {}}} for name in "pq"]} for i in range(14)]


@pytest.mark.case("C19")
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", schema({"type": "integer", "multipleOf": 999_983})),
        ("json_schema", schema({"allOf": ONE_MULTIPLE_OF_ALL})),
        ("json_schema", schema({"properties": MANY_MULTIPLES})),
        ("lark", 'start: %json {"type":"integer","multipleOf":999983}'),
    ],
)
def test_what_would_take_all_time_and_memory(workshop: TrialWorkshop, kind: str, text: str) -> None:
    assert judge(workshop, kind, text) in (TOO_SLOW, TOO_LARGE)
    assert judge(workshop, "regex", "a+") is None


@pytest.mark.case("C19")
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", chain(1000)),
        ("json_schema", nested_items(6000)),
        ("lark", "start: T0\n" + "".join(f'T{i}: ~(T{i + 1} "a")\n' for i in range(3000)) + 'T3000: "z"'),
        ("lark", "start: r0\n" + "".join(f'r{i}: (r{i + 1} "a")?\n' for i in range(3000)) + 'r3000: "z"'),
        ("regex", "(" * 30_000 + "a" + ")" * 30_000),
        ("regex", "((a{1,100}){1,100}){1,100}"),
        ("regex", "(" + "|".join(f".*{c}.{{15}}" for c in "abcdef") + ")z"),
        ("json_schema", schema({"enum": [f"value number {i}" for i in range(3000)]})),
        ("json_schema", schema({"allOf": MANY_CASES})),
        ("lark", "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(30)) + 'T30: "z"'),
    ],
)
def test_what_recurses_or_explodes_leaves_the_engine_alive(
    workshop: TrialWorkshop, kind: str, text: str
) -> None:
    assert len(text) <= 64 * 1024
    error = judge(workshop, kind, text)
    assert error is None or error.endswith(".")
    assert judge(workshop, "regex", "a+") is None


def test_a_trial_process_that_is_lost_is_replaced(workshop: TrialWorkshop) -> None:
    assert judge(workshop, "regex", "a+") is None
    lost = workshop._process
    assert lost is not None
    workshop.interrupt()
    assert lost.wait(20) == -signal.SIGKILL
    assert judge(workshop, "regex", "b+") is None


def test_it_ends_when_the_engine_does(workshop: TrialWorkshop) -> None:
    assert judge(workshop, "regex", "a+") is None
    process = workshop._process
    assert process is not None and process.stdin is not None
    process.stdin.close()
    assert process.wait(20) == 0
    workshop.close()


def test_the_size_of_a_grammar_is_known(workshop: TrialWorkshop) -> None:
    small = on_a_large_stack(lambda: workshop.compile(Grammar("regex", "a+")))
    large = on_a_large_stack(lambda: workshop.compile(Grammar("json_schema", chain(600))))
    assert large.num_bytes > small.num_bytes + 2**20


def test_a_model_without_an_end_of_text_is_told(tmp_path: Path) -> None:
    directory = save(byte_level(), tmp_path)
    endless = TrialWorkshop(SharedTokenizer(TokenizerSource(directory, 300, ())), timeout_s=1.0)
    with pytest.raises(GrammarError, match="end-of-text"):
        endless.compile(Grammar("regex", "a"))


def test_the_text_counts_beside_what_compiling_takes(
    workshop: TrialWorkshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workshop, "_try", lambda grammar: Verdict(num_bytes=5))
    grammar = Grammar("regex", "é" * 1000)
    assert on_a_large_stack(lambda: workshop.compile(grammar)).num_bytes == 5 + 2000
