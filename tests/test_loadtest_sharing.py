"""``tideload sharing``: what the simulation counts, and what the command prints and refuses."""

from __future__ import annotations

import gzip
import json
import random
import statistics
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loadtest.cli import main
from loadtest.lengths import BUILT_IN, Lengths, LengthsError, built_in, read_lengths
from loadtest.sharing import measure
from loadtest.simulate import KvUse, SharingSimulation


def uses(lengths: list[Lengths], width: int, *, use_beams: bool = False, in_flight: int = 1) -> list[KvUse]:
    simulation = SharingSimulation(
        lengths, width=width, use_beams=use_beams, in_flight=in_flight, block_size=16
    )
    return list(simulation.run(1))


def test_samples_share_the_full_blocks_of_their_prompt_and_nothing_else() -> None:
    """Of 40 tokens two blocks of 16."""
    found = [use for use in uses([Lengths(40, 20)] * 6, width=4) if use.physical_blocks > 3]
    assert len(found) > 20
    for use in found:
        per_sequence, rest = divmod(use.logical_blocks, 4)
        assert rest == 0
        assert use.physical_blocks == 2 + 4 * (per_sequence - 2)


def test_one_sequence_shares_nothing() -> None:
    found = uses([Lengths(40, 20)] * 9, width=1, in_flight=2)
    assert len(found) > 20
    for use in found:
        assert use.physical_blocks == use.logical_blocks
        assert use.tokens <= 16 * use.physical_blocks


@pytest.mark.parametrize(("kind", "width"), [("single", 1), ("parallel", 4)])
def test_little_is_wasted_under_the_lengths_of_sharegpt(kind: str, width: int) -> None:
    drawn = random.Random(0).choices(built_in("sharegpt"), k=120)
    found = measure("sharegpt", drawn, kind, width, in_flight=24, block_size=16)
    assert 0.005 < found.waste < 0.04


def test_beams_share_more_than_samples_and_more_the_wider_they_are() -> None:
    def saving(width: int, use_beams: bool) -> float:
        found = uses([Lengths(20, 60)] * 12, width, use_beams=use_beams, in_flight=2)
        return statistics.fmean(u.saving for u in found if u.logical_blocks)

    assert saving(2, False) < saving(2, True) < saving(4, True)
    assert saving(2, True) < 1 / 2
    assert saving(4, True) < 3 / 4


def test_beams_share_about_what_those_of_the_real_model_share() -> None:
    report = json.loads((Path(__file__).parent.parent / "docs/benchmarks/beam_sharing.json").read_text())
    short = [cell for cell in report["cells"] if cell["output"] == 58]
    assert [cell["width"] for cell in short] == [2, 4, 6]
    for cell in short:
        found = uses([Lengths(report["prompt"], 58)] * 40, cell["width"], use_beams=True, in_flight=10)
        share = statistics.fmean(u.saving for u in found if u.logical_blocks)
        assert share == pytest.approx(cell["real"], abs=0.04)


@pytest.mark.parametrize(("name", "prompt", "output"), [("alpaca", 19.4, 58.5), ("sharegpt", 160.3, 338.9)])
def test_the_built_in_lengths_have_the_means_of_the_paper(name: str, prompt: float, output: float) -> None:
    assert name in BUILT_IN
    pairs = built_in(name)
    assert len(pairs) == 10_000
    assert statistics.fmean(pair.prompt for pair in pairs) == pytest.approx(prompt, abs=0.1)
    assert statistics.fmean(pair.output for pair in pairs) == pytest.approx(output, abs=0.1)


def test_waste_is_what_the_last_blocks_do_not_hold() -> None:
    found = measure("mine", [Lengths(160, 320)] * 12, "single", 1, in_flight=4, block_size=16)
    assert (found.saving, found.paper) == (0.0, None)
    assert 0.005 < found.waste < 0.04
    coarse = measure("mine", [Lengths(160, 320)] * 12, "single", 1, in_flight=4, block_size=128)
    assert coarse.waste > 3 * found.waste


# ---- the command -----------------------------------------------------------------------------------


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["sharing", *arguments])


def test_the_table_and_the_report_say_the_same(tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    result = run(
        "--lengths", "alpaca", "--kind", "parallel", "--width", "2", "--requests", "40", "--in-flight", "8",
        "--json", str(report),
    )  # fmt: skip
    assert result.exit_code == 0
    single, parallel = json.loads(report.read_text())["cells"]
    assert (single["kind"], single["saving"]) == ("single", 0.0)
    assert (parallel["width"], parallel["paper"]) == (2, 0.0609)
    assert f"{parallel['saving']:.1%}" in result.output
    assert f"{parallel['waste']:.2%}" in result.output


def test_lengths_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv.gz"
    path.write_bytes(gzip.compress(b"input_length,output_length\n5,3\n7,4\n"))
    assert read_lengths(path) == [Lengths(5, 3), Lengths(7, 4)]
    result = run("--lengths", str(path), "--requests", "12", "--in-flight", "4", "--width", "2")
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "must have the columns"),
        ("a,b\n", "must have the columns"),
        ("", "must have the columns"),
        ("input_length,output_length\n200000,1\n", "more than 200000 tokens"),
        ("input_length,output_length\n", "has no rows"),
        ("input_length,output_length\n1,x\n", "whole numbers"),
        ("input_length,output_length\n1\n", "whole numbers"),
        ("input_length,output_length\n0,1\n", "below 1"),
    ],
)
def test_bad_files_of_lengths(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(LengthsError, match=message):
        read_lengths(path)
    result = run("--lengths", str(path))
    assert (result.exit_code, result.output.count("\n")) == (2, 1)


def test_a_report_that_cannot_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    result = run("--json", str(tmp_path / "none" / "out.json"))
    assert result.exit_code == 2
    assert "No such file or directory" in result.output
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe")
    (tmp_path / "bytes.csv.gz").write_bytes(b"no gzip")
    for name in ("bytes.csv", "bytes.csv.gz"):
        assert "is not a text file" in run("--lengths", str(tmp_path / name)).output


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert run("--lengths", str(tmp_path / "none.csv")).exit_code == 2
    assert run("--requests", "10", "--in-flight", "8").exit_code == 2
