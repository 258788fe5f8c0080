"""Ranges, caps and the window."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from engine.messages import SamplingDefaults
from gateway.errors import ApiError, ErrorKind
from gateway.openai.model import ModelContext, check_text_length, check_token_ids
from gateway.openai.validated import AnswerOptions, check_fields, complete
from gateway.openai.wire import GenerationFields, StreamOptions
from gateway.tokenizer import TextCodec
from tests.support.tiny_tokenizers import byte_level, save

NAN, INFINITY = float("nan"), float("inf")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelContext:
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    codec = TextCodec.load(save(byte_level(), directory))
    return ModelContext(
        ("tiny", "alias"),
        codec,
        window=100,
        vocab_size=300,
        fingerprint="fp_x",
        sampling_defaults=SamplingDefaults(temperature=0.5, top_p=0.9, top_k=40),
        max_num_seqs=8,
        max_in_flight=20,
        num_blocks=10,
        block_size=16,
    )


def check(model: ModelContext, /, max_tokens: int | None = None, **fields: Any) -> Any:
    return check_fields(GenerationFields(**fields), model, max_tokens, None)


def refused(model: ModelContext, /, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        check(model, **fields)
    assert caught.value.status in (400, 404)
    return caught.value


@pytest.mark.case("C4")
@pytest.mark.case("C5")
@pytest.mark.case("C6")
@pytest.mark.case("C7")
@pytest.mark.case("C12")
@pytest.mark.case("C13")
@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", [0, 0.5, 2], [-0.1, 2.1, 3, -1, NAN, INFINITY, -INFINITY]),
        ("top_p", [0.01, 1], [0, -1, 1.01, NAN, INFINITY]),
        ("min_p", [0, 1], [-0.1, 1.1, NAN]),
        ("repetition_penalty", [0.01, 1, 2], [0, 1e-38, -1, 2.5, NAN, INFINITY]),
        ("presence_penalty", [-2, 0, 2], [-2.1, 10, -10, NAN]),
        ("frequency_penalty", [-2, 0, 2], [-2.1, 10, -10, NAN]),
        ("top_k", [-1, 0, 1, 10**30], [-2, -(10**30)]),
        ("min_tokens", [0, 100], [-1, 101, 10**30]),
        ("seed", [-(2**63), 0, 2**63 - 1], [2**63, -(2**63) - 1, 10**400]),
        ("stop_token_ids", [[], [0, 299]], [[300], [-1], [151645], [10**30], [1] * 129]),
        ("stop", ["x", [], ["a"] * 4, "x" * 1024], ["", [""], ["a"] * 5, "x" * 1025, ["x"] * 500_000]),
        ("logit_bias", [{}, {"0": -100, "299": 100}], [{"300": 1}, {"-1": 1}, {"a": 1}, {"": 1}, {"1": 1e9},
                        {"1": NAN}, {"²": 1}, {"1" * 5000: 1}, {str(i): 0 for i in range(301)}]),
        ("n", [1, 2, 8], [0, -1, 9, 5_000_000]),
        ("best_of", [1, 2, 8], [0, -1, 9, 5_000_000]),
        ("model", ["tiny", "alias"], ["gpt-4", "", "x" * 10_000]),
    ],
)  # fmt: skip
def test_ranges(model: ModelContext, name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        check(model, **{name: value})
    for value in bad:
        error = refused(model, **{name: value})
        assert error.param == name
        assert len(error.message) < 200


def test_defaults(model: ModelContext) -> None:
    checked = check(model)
    assert checked.model == "tiny"
    assert checked.sampling.temperature == 0.5
    assert checked.sampling.top_p == 0.9
    assert checked.sampling.top_k == 40
    assert checked.sampling.min_p == 0.0
    assert checked.sampling.logprobs is None
    assert not checked.stream


def test_a_request_overrides_what_the_model_recommends(model: ModelContext) -> None:
    sampling = check(model, temperature=0, top_p=1, top_k=0).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0, 1, 0)


def test_values_reach_the_engine_in_its_own_terms(model: ModelContext) -> None:
    sampling = check(model, top_k=-1, seed=-1, logit_bias={"7": 2}, stop_token_ids=[5, 5]).sampling
    assert sampling.top_k == 0
    assert 0 <= sampling.seed < 2**63
    assert sampling.logit_bias == {7: 2}
    assert sampling.stop_token_ids == (5,)
    assert check(model, top_k=10**30).sampling.top_k == 300


def test_a_seed_is_drawn_when_none_is_given(model: ModelContext) -> None:
    assert len({check(model).sampling.seed for _ in range(5)}) == 5


def test_an_unknown_model_is_404(model: ModelContext) -> None:
    error = refused(model, model="other")
    assert (error.status, error.kind) == (404, ErrorKind.MODEL_NOT_FOUND)


def test_stream_options_need_a_stream(model: ModelContext) -> None:
    options = StreamOptions(include_usage=True)
    assert check(model, stream=True, stream_options=options).include_usage
    assert refused(model, stream_options=options).param == "stream_options"


@pytest.mark.parametrize("max_tokens", [0, -1, -(10**30)])
def test_max_tokens_is_at_least_one(model: ModelContext, max_tokens: int) -> None:
    assert refused(model, max_tokens=max_tokens).param == "max_tokens"


def test_min_tokens_above_max_tokens(model: ModelContext) -> None:
    assert refused(model, max_tokens=3, min_tokens=4).param == "min_tokens"


@pytest.mark.case("C10")
@pytest.mark.parametrize(
    ("asked", "given", "clamped"), [(None, 90, None), (5, 5, None), (90, 90, None), (10**30, 90, 10**30)]
)
def test_max_tokens_is_clamped_to_the_room(
    model: ModelContext, asked: int | None, given: int, clamped: int | None
) -> None:
    request = complete(check(model, max_tokens=asked), [[1] * 10], model, "prompt")
    assert request.sampling.max_tokens == given
    assert request.clamped_from == clamped


def test_min_tokens_follows_the_clamp(model: ModelContext) -> None:
    request = complete(check(model, min_tokens=80), [[1] * 50], model, "prompt")
    assert (request.sampling.min_tokens, request.sampling.max_tokens) == (50, 50)


def test_a_request_is_answered_as_its_checked_fields_say(model: ModelContext) -> None:
    wire = GenerationFields(
        model="alias", stop="x", stream=True, n=3, include_stop_str_in_output=True, skip_special_tokens=False,
        stream_options=StreamOptions(include_usage=True, continuous_usage_stats=True), guided_regex="a",
        service_tier="flex", prompt_cache_key="k",
    )  # fmt: skip
    checked = check_fields(wire, model, None, 5)
    request = complete(checked, [[1] * 10], model, "prompt")
    for option in fields(AnswerOptions):
        assert getattr(request, option.name) == getattr(checked, option.name)
        if option.name != "prompt_logprobs":  # which is not streamed
            assert getattr(request, option.name) != option.default


@pytest.mark.case("C11")
@pytest.mark.parametrize("length", [100, 101, 5000])
def test_a_prompt_that_leaves_no_room_states_both_lengths(model: ModelContext, length: int) -> None:
    with pytest.raises(ApiError) as caught:
        complete(check(model, max_tokens=10), [[1] * length], model, "prompt")
    assert caught.value.kind is ErrorKind.CONTEXT_LENGTH
    assert str(length) in caught.value.message
    assert "100" in caught.value.message


def test_the_longest_prompt_that_fits(model: ModelContext) -> None:
    assert complete(check(model), [[1] * 99], model, "prompt").sampling.max_tokens == 1


def test_a_text_past_any_tokenization_is_refused_unread(model: ModelContext) -> None:
    check_text_length(model.max_prompt_chars, model, "prompt")
    with pytest.raises(ApiError, match="characters"):
        check_text_length(model.max_prompt_chars + 1, model, "prompt")


@pytest.mark.case("C2")
@pytest.mark.parametrize("ids", [[300], [-1], [0, 10**30], [999_999]])
def test_token_ids_outside_the_vocabulary(model: ModelContext, ids: list[int]) -> None:
    with pytest.raises(ApiError) as caught:
        check_token_ids(ids, model, "prompt")
    assert caught.value.param == "prompt"
