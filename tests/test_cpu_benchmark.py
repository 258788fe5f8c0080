"""The benchmark of the CPU engine: floor, rounds and rows by hand, and a short run of it over stand-ins."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F

from benchmarks.bench_rows import Row
from benchmarks.cpu_engine import peers, systems
from benchmarks.cpu_engine.__main__ import measure, report_of
from benchmarks.cpu_engine.asked import FULL, MOST_DRIFT, Asked, Load
from benchmarks.cpu_engine.client import ClientError, Question
from benchmarks.cpu_engine.figures import sections
from benchmarks.cpu_engine.floor import Constants, Probe, output_tokens_s
from benchmarks.cpu_engine.peers import why_unusable, write_hf_directory
from benchmarks.cpu_engine.rates import Rates, packed_int8, prepacked, product_dtype
from benchmarks.cpu_engine.results import Round, Seen, Startups
from benchmarks.cpu_engine.rounds import Bench, order
from benchmarks.cpu_engine.servers import Running, running
from benchmarks.cpu_engine.systems import Setting, System
from engine.config import ModelConfig
from engine.loading.checkpoint import open_checkpoint
from tests.support.tiny_checkpoint import TINY, tiny_checkpoint

STEADY = Probe(1e11, 1e10)
CONSTANTS = Constants(
    prefill_tokens_s=4400,
    products_s={"bf16": 0.02, "int4": 0.007},
    copied_bytes_s=25e9,
    kv_token_bytes=23_040,
)
ASKED = Asked(
    loads=(Load(2, 2, input_len=24, output_len=6, goal=1.0),),
    prompt=Load(1, 1, input_len=64, output_len=2),
    num_rounds=2,
    num_starts=1,
)


# ---- the floor -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("users", "steps_s", "tokens_s"), [(1, 147, 136), (4, 365, 315), (16, 826, 620), (64, 2466, 1230)]
)
def test_the_floor_of_a_machine_whose_floor_is_known(users: int, steps_s: float, tokens_s: float) -> None:
    """As it was worked out for another machine, from the products' own tokens/s at each batch."""
    constants = Constants(
        prefill_tokens_s=4400,
        products_s={"slower": 1.0, "fastest": users / steps_s},
        copied_bytes_s=25e9,
        kv_token_bytes=23_040,
    )
    assert output_tokens_s(constants, Load(users, users)) == pytest.approx(tokens_s, rel=0.03)


def test_a_floor_reads_the_kv_of_every_user_and_the_products_of_the_fastest_format() -> None:
    slow_memory = Constants(
        prefill_tokens_s=1e12, products_s={"a": 0.5, "b": 0.25}, copied_bytes_s=100.0, kv_token_bytes=1
    )
    load = Load(2, 4, input_len=10, output_len=3)  # two steps, which read 2 × 11 and 2 × 12 tokens
    assert output_tokens_s(slow_memory, load) == pytest.approx(6 / (0.5 + 0.22 + 0.24))


# ---- what the machine can do ---------------------------------------------------------------------


@torch.inference_mode()
def test_packed_weights_give_the_products_that_are_meant() -> None:
    dtype = product_dtype()
    weight, rows = torch.randn(64, 32).to(dtype), torch.randn(5, 32).to(dtype)
    expected = F.linear(rows, weight)
    assert torch.allclose(prepacked(weight)(rows), expected, atol=0.1)
    assert torch.allclose(packed_int8(weight.float(), dtype)(rows), expected, atol=0.5)


def test_rates_are_of_all_of_the_model_in_every_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.cpu_engine.rates._BYTES", 2**20)
    monkeypatch.setattr("benchmarks.cpu_engine.rates._PROBE_SHAPE", (8, 64, 64))
    rates = Rates(TINY, torch.get_num_threads())
    found = rates.constants(Load(2, 2, input_len=8))
    plain = "bf16" if rates.dtype == torch.bfloat16 else "float32"
    assert found.products_s.keys() == {plain, "int8", "int4"} and min(found.products_s.values()) > 0
    assert min(found.prefill_tokens_s, found.copied_bytes_s) > 0
    assert found.kv_token_bytes == 2 * 3 * 2 * 16 * rates.dtype.itemsize
    assert found.prefill_format == plain
    assert [len(products) for products in rates._formats.values()] == [3 * 4 + 1] * 3
    assert rates.probe().drift_to(rates.probe()) >= 1


def test_drift_is_of_the_rate_that_changed_most_up_or_down() -> None:
    assert STEADY.drift_to(STEADY) == 1
    assert STEADY.drift_to(Probe(1.1e11, 2e10)) == pytest.approx(2)
    assert STEADY.drift_to(Probe(0.25e11, 1.1e10)) == pytest.approx(4)


# ---- rounds --------------------------------------------------------------------------------------


class FakeServer:
    def __init__(self, name: str) -> None:
        self.url = name

    @contextlib.contextmanager
    def going(self) -> Iterator[None]:
        yield


class FakeMachine:
    def __init__(self, probes: Sequence[Probe]) -> None:
        self._probes = list(probes)

    def probe(self) -> Probe:
        return self._probes.pop(0) if self._probes else STEADY

    def constants(self, load: Load) -> Constants:
        return CONSTANTS


class FakeClient:
    """Answers with the number of the question for a rate, but where it has to fail."""

    def __init__(self, failing: Mapping[int, str | KeyboardInterrupt]) -> None:
        self.asked: list[Question] = []
        self._failing = failing

    def ask(self, question: Question) -> Seen:
        self.asked.append(question)
        if (reason := self._failing.get(len(self.asked) - 1)) is not None:
            raise reason if isinstance(reason, BaseException) else ClientError(reason)
        return Seen(output_tok_s=len(self.asked), ttft_ms=1.0, itl_ms=1.0, itl_p99_ms=1.0)


def rounds_of(
    names: Sequence[str],
    asked: Asked,
    probes: Sequence[Probe] = (),
    failing: Mapping[int, str | KeyboardInterrupt] | None = None,
) -> tuple[list[Round], FakeClient]:
    client = FakeClient(failing or {})
    servers = cast(dict[str, Running], {name: FakeServer(name) for name in names})
    bench = Bench(servers, cast(Any, client), FakeMachine(probes), lambda text: None)
    return bench.measure(asked), client


def test_servers_take_turns_forwards_and_backwards() -> None:
    assert [order("abc", number) for number in range(3)] == [[*"abc"], [*"cba"], [*"abc"]]
    found, client = rounds_of(["a", "b"], ASKED)
    assert [(one.number, one.load) for one in found] == [
        (number, load.name) for number in (0, 1) for load in ASKED.all_loads
    ]
    assert [question.url for question in client.asked] == [*"abab", *"baba"]
    assert all(one.order == [*one.seen] for one in found)


def test_a_round_in_which_the_machine_changed_is_made_again_once_and_the_calmer_one_counts() -> None:
    wild, calm = Probe(5e11, 1e10), Probe(1.2e11, 1e10)
    worse = [STEADY, calm, STEADY, wild, STEADY, wild]  # the second load drifts, and again
    found, client = rounds_of(["a"], ASKED, worse)
    assert [one.was_repeated for one in found] == [False, True, False, False]
    assert len(client.asked) == 5 and found[1].seen["a"].output_tok_s == 2
    assert found[1].drift > MOST_DRIFT
    better = [STEADY, wild, STEADY, calm]
    found, _ = rounds_of(["a"], ASKED, better)
    assert found[0].was_repeated and found[0].seen["a"].output_tok_s == 2
    assert found[0].drift == pytest.approx(1.2)


def test_a_peer_that_is_lost_is_left_out_from_then_on_and_tidegate_is_not() -> None:
    found, client = rounds_of(["tidegate", "peer"], ASKED, failing={3: "it is gone"})
    assert [[*one.seen] for one in found] == [["tidegate", "peer"], *[["tidegate"]] * 3]
    assert [question.url for question in client.asked] == ["tidegate", "peer"] * 2 + ["tidegate"] * 2
    rows = rows_of(found)
    assert rows[0].value is not None and rows[0].beside == {}
    with pytest.raises(ClientError, match="it is gone"):
        rounds_of(["tidegate", "peer"], ASKED, failing={2: "it is gone"})


@pytest.mark.parametrize("asked_before", [2, 3])
def test_whole_rounds_are_kept_when_the_measurement_is_interrupted(asked_before: int) -> None:
    found, _ = rounds_of(["a"], ASKED, failing={asked_before: KeyboardInterrupt()})
    assert [(one.number, one.load) for one in found] == [(0, load.name) for load in ASKED.all_loads]
    with pytest.raises(KeyboardInterrupt):
        rounds_of(["a"], ASKED, failing={1: KeyboardInterrupt()})


# ---- rows ----------------------------------------------------------------------------------------


def round_of(load: Load, number: int, rates: dict[str, float], after: Probe = STEADY) -> Round:
    seen = {
        name: Seen(output_tok_s=rate, ttft_ms=1000 / rate, itl_ms=None, itl_p99_ms=None)
        for name, rate in rates.items()
    }
    return Round(
        load=load.name, number=number, order=[*rates], seen=seen, constants=CONSTANTS, before=STEADY,
        after=after,
    )  # fmt: skip


def rows_of(found: Sequence[Round]) -> list[Row]:
    started = Startups(
        start_s={"tidegate": [6.0, 4.0, 4.5], "llama-server": [5.0, 5.0, 5.0]},
        memory_bytes={"tidegate": 700_000_000, "llama-server": 200_000_000},
    )
    return [row for section in sections(ASKED, found, started) for row in section.rows]


def test_rows_are_medians_beside_the_best_peer_and_the_floor() -> None:
    load, prompt = ASKED.loads[0], ASKED.prompt
    found = [
        round_of(one, number, {"tidegate": ours, "llama-server": 100.0, "vLLM": 200.0})
        for number, ours in enumerate((100.0, 300.0, 220.0) * 2)
        for one in (load, prompt)
    ]
    rate, floor, ttft, gap, _, prompt_ttft, prompt_floor, start, memory = rows_of(found)
    assert (rate.value, rate.held_to, rate.ratio) == (220.0, "vLLM", pytest.approx(1.1))
    assert rate.interval is not None and rate.interval.low <= 1.1 <= rate.interval.high and rate.is_met
    assert floor.beside == {"floor": pytest.approx(output_tokens_s(CONSTANTS, load))}
    assert (ttft.held_to, ttft.ratio) == ("vLLM", pytest.approx(200 / 220))
    assert gap.value is None and gap.note
    assert prompt_ttft.is_met and prompt_floor.beside["floor"] == pytest.approx(1000 * 64 / 4400)
    assert (start.value, start.is_met, start.ratio) == (4.5, True, pytest.approx(0.9))
    assert (memory.value, memory.is_met) == (pytest.approx(0.7), True)


def test_a_row_says_how_many_of_its_rounds_drifted() -> None:
    wild = Probe(5e11, 1e10)
    found = [
        round_of(one, number, {"tidegate": 1.0, "llama-server": 2.0}, wild if number else STEADY)
        for number in (0, 1)
        for one in ASKED.all_loads
    ]
    rate = rows_of(found)[0]
    assert "1 of 2 rounds" in rate.note and rate.is_met is False


# ---- the whole, over stand-ins -------------------------------------------------------------------


def stand_in(name: str, gap_s: float) -> System:
    command = (sys.executable, "-m", "tests.support.stand_in_server", "{port}", str(gap_s))
    return System(name, command, kv_bytes=1_000_000, how="a stand-in")


def state_of(server: Running) -> str:
    return Path(f"/proc/{server.process.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it does not come to that")


def pss_bytes(pid: int) -> int:
    return 1024 * int(Path(f"/proc/{pid}/smaps_rollup").read_text().split("Pss:")[1].split()[0])


def test_a_server_runs_only_while_it_is_measured_and_all_of_its_processes_count(tmp_path: Path) -> None:
    with running(stand_in("one", 0.0), tmp_path / "log") as server:
        pid = server.process.process.pid
        assert server.start_s > 0
        wait_until(lambda: state_of(server) == "T")
        with server.going():
            wait_until(lambda: state_of(server) != "T")
        wait_until(lambda: state_of(server) == "T")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(children) == 1
        whole = sum(pss_bytes(int(one)) for one in (pid, *children))
        assert whole > 1.05 * pss_bytes(pid), "the child is too small to tell"
        assert server.memory_bytes() == pytest.approx(whole - 1_000_000, rel=0.02)
    assert not Path(f"/proc/{pid}").exists()


def test_a_whole_run(tmp_path: Path) -> None:
    ours, other = stand_in("tidegate", 0.002), stand_in("llama-server", 0.03)
    model = cast(ModelConfig, None)
    setting = Setting(ASKED, model, Path("model.gguf"), threads=1)
    rounds, started, lost = measure(setting, [ours, other], tmp_path, FakeMachine([]))
    assert not lost and len(rounds) == 4 and {len(had) for had in started.start_s.values()} == {1}
    found = report_of(setting, [ours, other], {"vLLM": "not installed"}, rounds, started)
    assert found[0].rows[0].ratio is not None and found[0].rows[0].ratio > 1
    assert found[0].rows[0].is_met and found[0].rows[0].held_to == "llama-server"
    assert found[-1].rows == [Row(name="vLLM", note="not installed")]
    assert found[-1].facts["rounds"] == "2 of 2"
    interrupted = report_of(setting, [ours, other], {}, rounds[:2], started)
    assert interrupted[-1].facts["rounds"] == "1 of 2"


def test_a_server_that_is_not_there_costs_its_measurement_and_no_more() -> None:
    from benchmarks.cpu_engine.client import client

    with client() as asker, pytest.raises(ClientError, match="Unreachable"):
        asker.ask(Question("http://127.0.0.1:9", ASKED.prompt, 0))


def test_a_server_that_dies_or_is_not_there_is_missing_with_the_reason(tmp_path: Path) -> None:
    dying = System("llama-server", (sys.executable, "-c", "print('a\\ntoo old'); exit({port} and 4)"), 0, "")
    assert why_unusable(dying, tmp_path) == "The server ended with status 4. too old"
    absent = System("llama-server", (str(tmp_path / "absent"), "{port}"), 0, "")
    assert "cannot be started" in why_unusable(absent, tmp_path)


def test_only_where_there_is_amx_is_repacking_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[System] = []

    def why(system: System, directory: Path) -> str:
        tried.append(system)
        return "" if "--no-repack" in system.command else "it crashed"

    monkeypatch.setattr(peers, "why_unusable", why)
    system = System("llama-server", ("llama-server", "{port}"), 0, "")
    monkeypatch.setattr(systems, "has_amx", lambda: False)
    (tmp_path / "trial.log").write_text("")
    assert peers.without_fault(system, tmp_path, print) == "it crashed" and len(tried) == 1
    monkeypatch.setattr(systems, "has_amx", lambda: True)
    assert peers.without_fault(system, tmp_path, print) == systems.without_repack(system)
    monkeypatch.setattr(peers, "why_unusable", lambda *_: "")
    assert peers.without_fault(system, tmp_path, print) == system


def test_what_llama_cpp_was_built_for_is_told(tmp_path: Path) -> None:
    system = System("llama-server", ("llama-server", "{port}"), 0, "-t 2")
    log = tmp_path / "log"
    log.write_text(
        "I system_info: n_threads = 2 / 2 | CPU : AVX2 = 1 | AVX512 = 0 | REPACK = 1 | \nready = 1\n"
    )
    assert peers.told(system, log).how == "-t 2; built for AVX2, REPACK"
    log.write_text("ready\n")
    assert peers.told(system, log) == system
    assert "-lv" in systems.talkative(system).command
    assert systems.talkative(replace(system, name="vLLM")).command == system.command


def test_the_version_is_what_a_program_says_of_itself(tmp_path: Path) -> None:
    for text, version in (
        ("echo 'log at 12:00' >&2; echo 0.14.1", "0.14.1"),
        ("echo 'version: 7 (abc)' >&2; echo built >&2", "version: 7 (abc)"),
        ("echo 1.0; exit 1", "version not known"),
        ("echo hello", "version not known"),
    ):
        program = tmp_path / "program"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        assert systems.version_of(str(program)) == version


# ---- the servers ---------------------------------------------------------------------------------


def test_servers_get_the_same_threads_and_room_for_the_heaviest_load() -> None:
    model = open_checkpoint("", "auto", 0).config
    setting = Setting(FULL, model, Path("/models/model.gguf"), threads=2)
    assert setting.window >= 1024 + 4 and setting.window % 256 == 0
    ours = systems.tidegate(setting)
    llama = systems.llama_server(setting, "/bin/echo")
    words = " ".join(llama.command)
    assert f"-t 2 -fa off -np 64 -c {64 * setting.window}" in words and "{port}" in llama.command
    assert llama.kv_bytes == 64 * setting.window * 23_040
    assert "--threads 2" in " ".join(ours.command) and ours.kv_bytes == 2**30
    assert ours.kv_bytes >= 64 * 256 * 23_040
    assert systems.without_repack(llama).command[-1] == "--no-repack"
    assert "no-repack" in systems.without_repack(llama).how


def test_a_model_written_as_a_hugging_face_directory_is_the_same_model(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "source")
    again = open_checkpoint(str(write_hf_directory(checkpoint, tmp_path / "written")), "auto", 0)
    assert again.config == TINY
    assert again.tensors.names() == checkpoint.tensors.names()
    for name in again.tensors.names():
        assert torch.equal(again.tensors.load(name), checkpoint.tensors.load(name)), name
