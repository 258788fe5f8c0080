"""Messages between the gateway process and the engine process.

Length-prefixed msgspec msgpack over a stream socket. Each direction is one envelope with the
engine's epoch (a random number drawn when the engine starts) and a body out of a closed, tagged
union, so that a message from a previous engine can never be taken for one of the present engine.
Imports neither torch nor sockets: both sides, and the tests, share this file.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Literal

import msgspec

from engine.config import EngineConfig
from engine.stats import EngineStats, KvCosts, SequenceKv, SessionKv

DEFAULT_KV_QUOTA = 0.5


class FinishReason(enum.StrEnum):
    """Why a sequence ended. ``STOP`` and ``LENGTH`` are successes."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"


class BeamParams(msgspec.Struct, frozen=True):
    """Beam search with ``width`` beams, in the sense of ``engine.beam``.

    ``early_stopping``: True ends it once ``width`` sequences are finished; False when the best beam, were it
    to end now, would not beat them; "never" when it cannot beat them at any length.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


class Grammar(msgspec.Struct, frozen=True):
    """What an answer must look like: ``text`` is a JSON schema, a regular expression or a Lark grammar."""

    kind: Literal["json_schema", "regex", "lark"]
    text: str


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose the next token. All ranges are checked by the gateway before it is built.

    ``temperature`` 0 is greedy. ``top_k`` 0 means no limit. ``logprobs`` is None for none, else the
    number of alternatives to report beside the sampled token (0 is valid). ``max_tokens`` is always
    set: the gateway clamps it to the window; with 0 the prompt is computed and nothing is generated.
    ``seed`` is 64 bits; a draw depends only on (seed, position), never on its neighbours in the batch.
    ``n`` sequences are generated for one prompt, of which number i draws with ``seed`` + i; with ``beam``
    they are the ``n`` best that the search found, and nothing is drawn. With a ``grammar`` only tokens that
    keep to it can come. ``prompt_logprobs`` is None for none, else the number of alternatives to report for
    each token of the prompt, the first left out.
    """

    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    n: int = 1
    beam: BeamParams | None = None
    grammar: Grammar | None = None
    prompt_logprobs: int | None = None

    @property
    def num_seqs(self) -> int:
        """How many sequences run at once for this request."""
        return self.n if self.beam is None else self.beam.width


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long a request's full blocks are kept, and how far down the tiers they may go.

    Until ``keep_s`` after its last use a block goes only after all that are not kept. What is not to go below
    host is never copied to disk, not even when it is kept no longer.
    """

    keep_s: float
    lowest: Literal["host", "disk"] = "disk"


# ---- gateway -> engine -------------------------------------------------------------------------


class Configure(msgspec.Struct, frozen=True, tag=True):
    """First message on a new connection: load this model and build the pools."""

    config: EngineConfig


class AddRequest(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Start a request. ``cache_salt`` comes from the authenticated tenant, never from the caller.

    ``tenant`` is who gets a share of what is computed, in proportion to its ``weight``; among its requests
    the lower ``priority`` goes first. ``session``: the conversation that it is a turn of, by a name that no
    other tenant's has; "" for none. ``expected_return_s``: how long after the end of this request its
    session is expected to come back with more; None if it did not say, and the engine goes by what it has
    measured. ``kv_quota``: share of each tier's blocks that the tenant's kept blocks may take; beyond it the
    oldest of them are kept no more.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    cache_salt: bytes = b""
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    expected_return_s: float | None = None
    session: str = ""
    retention: Retention | None = None
    kv_quota: float = DEFAULT_KV_QUOTA


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One continuation of another request's tokens: ``token_ids`` are appended to them, then ``sampling``."""

    request_id: str
    sampling: SamplingParams
    token_ids: tuple[int, ...] = ()


class ForkRequest(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Start requests whose prompt is all that sequence ``index`` of request ``request_id`` has so far.

    It may be running, or finished not too long ago (the token that ended it included); of a beam search only
    the results can be forked. Branches share its full blocks on whatever tier they are. ``cache_salt`` must
    be that of the forked request: another tenant's is as good as unknown. ``tenant``, ``weight`` and
    ``priority`` as in ``AddRequest``.
    """

    request_id: str
    branches: tuple[Branch, ...]
    index: int = 0
    cache_salt: bytes = b""
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0


class AbortRequest(msgspec.Struct, frozen=True, tag=True):
    """Drop a request, or one of its sequences, in whatever state it is.

    What is unknown or over is ignored. A beam search is dropped whole, whatever the index.
    """

    request_id: str
    index: int | None = None


class PauseRequest(msgspec.Struct, frozen=True, tag=True):
    """The client reads too slowly: compute nothing for it, and let it be the first to lose blocks."""

    request_id: str


class ResumeRequest(msgspec.Struct, frozen=True, tag=True):
    """The client caught up: schedule the request again."""

    request_id: str


class ForgetKv(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Lose each block that covers a token at ``from_token`` or later of this history, on every tier.

    A restart does not find them on disk either. What a running request uses it keeps, without a name, to its
    end. ``cache_salt`` as in ``AddRequest``.
    """

    token_ids: tuple[int, ...]
    from_token: int = 0
    cache_salt: bytes = b""


class CheckIntegrity(msgspec.Struct, frozen=True, tag=True):
    """Recount every block from scratch and answer with an ``IntegrityReport``."""

    check_id: int


class DescribeKv(msgspec.Struct, frozen=True, tag=True):
    """Answer with a ``KvReport`` of at most ``limit`` requests."""

    check_id: int
    limit: int


class DescribeSessions(msgspec.Struct, frozen=True, tag=True):
    """Answer with a ``SessionsReport`` of these sessions."""

    check_id: int
    sessions: tuple[str, ...]


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Abort what runs and leave."""


EngineCommand = (
    Configure
    | AddRequest
    | ForkRequest
    | AbortRequest
    | PauseRequest
    | ResumeRequest
    | ForgetKv
    | CheckIntegrity
    | DescribeKv
    | DescribeSessions
    | Shutdown
)


class ToEngine(msgspec.Struct, frozen=True, array_like=True):
    """Envelope of every gateway -> engine message."""

    epoch: int
    body: EngineCommand


# ---- engine -> gateway -------------------------------------------------------------------------


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probability of one sampled token and of its most likely alternatives (natural log).

    Taken from the model's raw logits, before penalties, bias, temperature and truncation.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities of consecutive tokens of a prompt, packed (little endian) because they may be many.

    Of each token ``logprobs`` (float32) has its own and ``ranks`` (uint32) its rank among all tokens, from 1;
    ``top_ids`` (uint32) and ``top_logprobs`` (float32) have the ``num_top`` likeliest tokens in that place,
    best first. They are what ``TokenLogprobs`` are taken from.
    """

    logprobs: bytes = b""
    ranks: bytes = b""
    top_ids: bytes = b""
    top_logprobs: bytes = b""
    num_top: int = 0

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.logprobs) // 4

    def entries(self, num_top: int) -> Iterator[tuple[TokenLogprobs, int]]:
        """Each token with at most ``num_top`` alternatives, and its rank."""
        top_ids = memoryview(self.top_ids).cast("I")
        top_logprobs = memoryview(self.top_logprobs).cast("f")
        pairs = zip(memoryview(self.logprobs).cast("f"), memoryview(self.ranks).cast("I"), strict=True)
        for index, (logprob, rank) in enumerate(pairs):
            shown = slice(index * self.num_top, index * self.num_top + min(num_top, self.num_top))
            yield TokenLogprobs(logprob, tuple(zip(top_ids[shown], top_logprobs[shown], strict=True))), rank


class TokenDelta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one engine step produced for sequence ``index`` of one request.

    A sequence ends with its ``finish_reason``, and the request with the last of its sequences, or with an
    error of any of them: ``ends_request``. That comes without a finish reason when the last one was aborted.
    A beam search tells its ``n`` results, best first, when it is done, each with its ``score``.

    ``logprobs`` is aligned with ``token_ids`` when asked for. ``stop_token_id`` is set when the last
    token ended the sequence (end of text, or one of ``stop_token_ids``): it counts as generated but
    is not text. ``num_cached_tokens`` is the number of prompt tokens that were not computed because
    the prefix cache held them at first admission. ``error`` is set with ``FinishReason.ERROR``,
    ``is_invalid`` if the request itself is at fault. ``prompt_logprobs`` come once, with the first delta of
    the request, for the second and all later tokens of the prompt. None is ever part of a cycle.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    error: str | None = None
    index: int = 0
    ends_request: bool = False
    score: float | None = None
    is_invalid: bool = False
    prompt_logprobs: PromptLogprobs | None = None


class StepReport(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """One message per engine step for all requests.

    ``stage_seconds`` maps a stage of the step (schedule, execute, update) to the time it took.
    """

    step: int
    deltas: tuple[TokenDelta, ...]
    stats: EngineStats
    stage_seconds: dict[str, float]


class LoadProgress(msgspec.Struct, frozen=True, tag=True):
    """Loading goes on: ``done`` of ``total`` units of ``phase`` (bytes for weights)."""

    phase: str
    done: int
    total: int


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Values that a model's publisher recommends, for fields that a request leaves out."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What was loaded. ``tokenizer_dir`` holds ``tokenizer.json``; ``stop_token_ids`` end a text.

    ``kv_bytes`` is what the device pool takes; ``host_*`` and ``disk_*`` are of the other tiers, 0 for one
    that is off; ``host_link`` says how blocks get to a GPU and back, and how fast; ``disk_blocks_found`` were
    on disk already; ``policies`` are eviction, write and restore.
    ``memory_*_bytes`` are of the memory that the device pool is in, before loading, within the control
    group's limit; ``fingerprint`` changes with the weights, the model's shape and the way of computing;
    ``notes`` are sentences that ``tidegate doctor`` and the start-up log show (fallbacks chosen, settings
    without effect).
    """

    model_name: str
    architecture: str
    device: str
    dtype: str
    num_parameters: int
    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    kv_bytes: int
    weight_bytes: int
    memory_total_bytes: int
    memory_available_bytes: int
    threads: int
    attention_backend: str
    tokenizer_dir: str
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    stop_token_ids: tuple[int, ...]
    sampling_defaults: SamplingDefaults = SamplingDefaults()
    fingerprint: bytes = b""
    notes: tuple[str, ...] = ()
    host_blocks: int = 0
    host_kv_bytes: int = 0
    host_link: str = ""
    disk_blocks: int = 0
    disk_kv_bytes: int = 0
    disk_blocks_found: int = 0
    deterministic: bool = False
    policies: tuple[str, str, str] = ("lru", "back", "adaptive")


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded and warmed up; requests may come."""

    info: EngineInfo


class LoadFailed(msgspec.Struct, frozen=True, tag=True):
    """The engine could not start. ``message`` is one plain sentence for the user.

    ``is_user_error`` tells a wrong path or setting from a fault of ours.
    """

    message: str
    is_user_error: bool


class IntegrityReport(msgspec.Struct, frozen=True, tag=True):
    """Answer to ``CheckIntegrity``: what the recount found wrong (nothing, if all is well)."""

    check_id: int
    problems: tuple[str, ...]
    stats: EngineStats


class KvReport(msgspec.Struct, frozen=True, tag=True):
    """Answer to ``DescribeKv``; ``num_requests`` counts those left out too."""

    check_id: int
    num_requests: int
    sequences: tuple[SequenceKv, ...]
    stats: EngineStats
    costs: KvCosts


class SessionsReport(msgspec.Struct, frozen=True, tag=True):
    """Answer to ``DescribeSessions``: an entry for each, in the order in which they were asked for."""

    check_id: int
    sessions: tuple[SessionKv, ...]


class EngineFailed(msgspec.Struct, frozen=True, tag=True):
    """The step loop raised; the engine is about to exit."""

    message: str


EngineEvent = (
    StepReport
    | LoadProgress
    | Ready
    | LoadFailed
    | IntegrityReport
    | KvReport
    | SessionsReport
    | EngineFailed
)


class FromEngine(msgspec.Struct, frozen=True, array_like=True):
    """Envelope of every engine -> gateway message.

    ``num_behind`` others wait in the engine to be sent; of them the last may be its end, which is no message.
    """

    epoch: int
    body: EngineEvent
    num_behind: int = 0
