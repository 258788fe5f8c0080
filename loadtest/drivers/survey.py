"""Finds out about a server what a measurement must know before it begins.

Runs on the event loop. It asks what servers tell (models, version, window, tokens), and tries with requests
of a few tokens what they take: a refusal is an answer, and any other failure is none, so it is tried again.
Nothing is taken for granted from the server's kind.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from loadtest.clock import Clock, MonotonicClock
from loadtest.drivers.apis import Options
from loadtest.drivers.base import Driver, PastTurn, ServerUnreachableError
from loadtest.drivers.driver import ServerDriver
from loadtest.drivers.open_files import allow_connections
from loadtest.drivers.server_facts import Facts, ServerPages
from loadtest.drivers.target import Target
from loadtest.drivers.vocabulary import (
    COMMON,
    FEWEST,
    FileVocabulary,
    Vocabulary,
    VocabularyError,
    own_words,
    single_words,
    with_opening,
)
from loadtest.plan import PlannedRequest
from loadtest.prompts import TemplateCost, Words
from loadtest.results import Server
from loadtest.timeline import Outcome, Timeline, Usage

_TEXT = " ".join(COMMON[:8])
_FEW, _FEW_OF_RESPONSE = 4, 16  # tokens of a trial's answer; OpenAI takes no fewer in a response
_CURT, _CURT_LEN = "Say yes. Answer with this word alone, and with no other.", 16
"""A question whose answer is over before so many tokens, unless the server has been told to go on."""
_PATIENCE_S = 60.0  # with one of these requests
_PAUSES_S = (0.5, 2.0)  # before what was not answered is asked again
_REFUSALS = ("http 400", "http 422")
_SHORT, _LONG = 16, 48  # words of the prompts that the template's cost is taken from
_A_WINDOW = 1024  # of servers that do not tell theirs
_MANY_COUNTS, _SOME_COUNTS = 400, 24  # by a tokenizer, or by usage, where each is a request


@dataclass(frozen=True, slots=True)
class Survey:
    """``target`` with the model filled in. ``notes``: what a reader of the report has to know."""

    target: Target
    server: Server
    options: Options
    words: Words
    cost: TemplateCost
    notes: list[str] = field(default_factory=list)


def make_driver(survey: Survey, clock: Clock, max_connections: int) -> Driver:
    """For up to so many requests at a time. Raises OpenFilesError."""
    allow_connections(max_connections)
    return ServerDriver(survey.target, survey.options, clock)


async def survey(target: Target) -> Survey:
    """Raises ServerUnreachableError, and VocabularyError for a tokenizer's file that cannot be used."""
    own = FileVocabulary(target.tokenizer) if target.tokenizer else None
    async with ServerPages(target) as pages:
        facts = await pages.facts()
        target = replace(target, model=facts.model)
        options, notes = await find_options(target, facts)
        vocabulary = own or await pages.vocabulary(facts)
        words = await find_words(target, options, vocabulary, facts.max_model_len)
    cost, notes_of_cost = await find_cost(target, options, words)
    notes += notes_of_cost
    server = Server(
        base_url=target.address.url,
        model=target.model,
        kind=facts.kind,
        version=facts.version,
        max_model_len=facts.max_model_len,
        forces_lengths=options.forces_lengths,
        token_words=len(words.words),
        words_verified=words.verified,
    )
    if not options.tells_usage:
        notes.append("The server tells no usage, so tokens could not be counted; only times are known.")
    return Survey(target, server, options, words, cost, notes)


# ---- trials ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a small request. ``turn`` is there when it completed."""

    timeline: Timeline
    turn: PastTurn | None

    @property
    def usage(self) -> Usage | None:
        return self.timeline.usage if self.timeline.outcome is Outcome.COMPLETED else None

    @property
    def reason(self) -> str:
        return self.timeline.reason

    @property
    def is_answered(self) -> bool:
        """Done or refused; else nothing is known of what was tried."""
        return self.turn is not None or self.reason == "no usage" or self.reason.startswith(_REFUSALS)

    @property
    def is_as_long_as_asked(self) -> bool:
        if self.usage is not None:
            return self.usage.completion_tokens == self.timeline.planned.output_len
        return self.timeline.finish_reasons == ["length"]


async def attempt(
    target: Target, options: Options, text: str, past: tuple[PastTurn, ...] = (), output_len: int = _FEW
) -> Trial:
    """With a few more tries if it is not answered: a server may be busy, or a network fail once."""
    trial = await _attempt_once(target, options, text, past, output_len)
    for pause_s in _PAUSES_S:
        if trial.is_answered:
            break
        await asyncio.sleep(pause_s)
        trial = await _attempt_once(target, options, text, past, output_len)
    return trial


async def _attempt_once(
    target: Target, options: Options, text: str, past: tuple[PastTurn, ...] = (), output_len: int = _FEW
) -> Trial:
    hasty = replace(target, timeout_s=min(target.timeout_s, _PATIENCE_S))
    driver = ServerDriver(hasty, options, MonotonicClock())
    if target.api == "responses":
        output_len = max(output_len, _FEW_OF_RESPONSE)
    planned = PlannedRequest(0, text, input_len=0, output_len=output_len)
    timeline = Timeline(planned, len(past), 0, 0.0)
    try:
        turn = await driver.perform(driver.prepare(planned), past, timeline)
    finally:
        await driver.close()
    return Trial(timeline, turn)


async def find_options(target: Target, facts: Facts) -> tuple[Options, list[str]]:
    """And notes of what nobody could tell. Raises ServerUnreachableError if no bare request is answered."""
    finder = _OptionsFinder(target)
    options = await _bare(target, facts)
    if target.api != "responses":
        options = await finder.with_usage(options)
    options = await finder.with_forced_lengths(options)
    if target.api == "responses":
        options = await finder.with_histories(options)
    elif options.tells_usage:
        options = await finder.with_usage_so_far(options)
    return options, finder.notes


async def _bare(target: Target, facts: Facts) -> Options:
    """A response tells its usage without being asked to, or does not."""
    for options in (Options(), Options(length_field="max_completion_tokens")):
        trial = await _attempt_once(target, options, _TEXT)
        if trial.turn is not None:
            return replace(options, tells_usage=target.api == "responses" and trial.usage is not None)
        if not trial.reason.startswith("http 400") or target.api != "chat":
            break
    known = f" It names these models: {', '.join(facts.models)}." if facts.models else ""
    raise ServerUnreachableError(
        f"{target.address.url} does not answer a small request to the {target.api} API for the model"
        f" {target.model!r}: {trial.reason}.{known}"
    )


class _OptionsFinder:
    """Each method adds an option to others, if the server takes it. ``notes``: of what nobody could tell."""

    def __init__(self, target: Target) -> None:
        self.notes: list[str] = []
        self._target = target
        self._last_done: Trial | None = None

    async def with_usage(self, options: Options) -> Options:
        wanted = replace(options, tells_usage=True)
        trial = await self._try("stream_options.include_usage", wanted, _TEXT)
        return options if trial.turn is None else wanted

    async def with_forced_lengths(self, options: Options) -> Options:
        """Many servers pass over fields that they do not know: the answer must be as long as it was to be."""
        for name, wanted in (
            ("ignore_eos", replace(options, ignores_eos=True)),
            ("min_tokens", replace(options, keeps_min_tokens=True)),
        ):
            trial = await self._try(name, wanted, _CURT, output_len=_CURT_LEN)
            if trial.turn is not None and trial.is_as_long_as_asked:
                return wanted
        return options

    async def with_usage_so_far(self, options: Options) -> Options:
        """Many servers take the question for it and do not answer it."""
        wanted = replace(options, tells_usage_so_far=True)
        trial = await self._try("stream_options.continuous_usage_stats", wanted, _TEXT)
        counts = trial.timeline.piece_tokens
        return wanted if trial.turn is not None and counts is not None and any(counts[0][:1]) else options

    async def with_histories(self, options: Options) -> Options:
        """A turn by the id of the one that was tried last; its prompt must be the longer one."""
        first = self._last_done or await attempt(self._target, options, _TEXT)
        if first.turn is None or not first.turn.response_id:
            return options
        keeping = replace(options, keeps_responses=True)
        second = await self._try("previous_response_id", keeping, _TEXT, (first.turn,))
        if second.turn is None:
            return options
        if first.usage is None or second.usage is None:
            return keeping
        return keeping if second.usage.prompt_tokens > first.usage.prompt_tokens else options

    async def _try(
        self, name: str, wanted: Options, text: str, past: tuple[PastTurn, ...] = (), output_len: int = _FEW
    ) -> Trial:
        trial = await attempt(self._target, wanted, text, past, output_len)
        self._last_done = self._last_done if trial.turn is None else trial
        if not trial.is_answered:
            self.notes.append(
                f"Whether the server takes {name} could not be found out ({trial.reason}); it gets none."
            )
        return trial


# ---- words and what stands around them ---------------------------------------------------------


async def find_words(
    target: Target, options: Options, vocabulary: Vocabulary | None, window: int | None
) -> Words:
    if vocabulary is not None and (words := await _of_vocabulary(vocabulary, window or _A_WINDOW)):
        return Words(words, verified=True)
    if options.tells_usage:

        async def count(text: str) -> int:
            usage = (await attempt(target, options, text)).usage
            return -1 if usage is None else usage.prompt_tokens

        words = await single_words(COMMON, count, _SOME_COUNTS)
        if len(words) >= FEWEST:
            return Words(words, verified=False)
    return Words(COMMON, verified=False)


async def _of_vocabulary(vocabulary: Vocabulary, window: int) -> list[str]:
    """Empty if there are too few, or the server's tokenizer stops answering."""

    async def count(text: str) -> int:
        return len(await vocabulary.tokens(text))

    try:
        words = await single_words(await own_words(vocabulary, window), count, _MANY_COUNTS)
        return await with_opening(words, vocabulary) if len(words) >= FEWEST else []
    except VocabularyError:
        return []


async def find_cost(target: Target, options: Options, words: Words) -> tuple[TemplateCost, list[str]]:
    """From what usage says of texts of known lengths. The answer in between is ours, so that it is known."""
    if not options.tells_usage:
        return TemplateCost(0, 0), []
    short, long = words.probe(_SHORT), words.probe(_LONG)
    past = (PastTurn(short, f" {short}"),)
    counted = [
        trial.usage.prompt_tokens if trial.usage is not None else None
        for trial in [
            await attempt(target, options, short),
            await attempt(target, options, long),
            await attempt(target, options, short, past),
        ]
    ]
    one, other, both = counted
    if one is None or other is None:
        return TemplateCost(0, 0), ["What the API adds around a prompt could not be measured."]
    notes = []
    if other - one != _LONG - _SHORT:
        notes.append(
            f"Of {_LONG - _SHORT} more words in a prompt the server counted {other - one} tokens: prompts are"
            " not as long as planned."
        )
    first = one - _SHORT
    if both is None:
        notes.append("What the API adds around a later turn could not be measured.")
        return TemplateCost(first, first), notes
    return TemplateCost(first, both - one - 2 * _SHORT), notes
