"""How a response is kept, what of its KV goes when it is deleted, and what cannot be kept.

Pure. Beside what the API shows a record has what the request was and which tokens were generated: from these
two, and the history, it is known exactly which blocks were made for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from gateway.errors import ApiError, ErrorKind, bad_request
from gateway.openai.responses.endpoint import ResponseRequest, ResponsesEndpoint, conversation_of
from gateway.openai.responses.items import Item, decode_item
from gateway.openai.responses.shape import ResponseObject, encode_response
from gateway.openai.responses.wire import ResponseWire
from gateway.responses.records import (
    ConversationFullError,
    DuplicateItemError,
    HistoryGoneError,
    ItemRecord,
    ResponseRecord,
    StateFullError,
)
from gateway.responses.turns import previous_not_found

_ENCODER = msgspec.json.Encoder()


class Making(msgspec.Struct):
    """What made a response. ``request`` is without its input, which is kept as items."""

    request: ResponseWire
    output_token_ids: list[int]


_MAKING = msgspec.json.Decoder(Making)


@dataclass(frozen=True, slots=True)
class Purge:
    """The blocks of a history that cover a token at ``from_token`` or later."""

    token_ids: tuple[int, ...]
    from_token: int


def as_record(
    response: ResponseObject,
    request: ResponseRequest,
    tenant: str,
    session: str,
    output_token_ids: Sequence[int] = (),
) -> ResponseRecord:
    """A response as it is now."""
    making = Making(msgspec.structs.replace(request.wire, input=None), list(output_token_ids))
    return ResponseRecord(
        id=response.id,
        tenant=tenant,
        session=session,
        previous_id=request.wire.previous_response_id,
        conversation_id=conversation_of(request.wire),
        status=response.status,
        created_at=response.created_at,
        body=encode_response(response),
        inputs=kept(request.items),
        outputs=kept(response.output),
        making=_ENCODER.encode(making),
    )


def decoded(items: Sequence[ItemRecord]) -> list[Item]:
    """Items as they were kept."""
    return [decode_item(item.body) for item in items]


def purge_of(
    record: ResponseRecord, history: Sequence[ItemRecord], endpoint: ResponsesEndpoint
) -> Purge | None:
    """What nothing but this response was computed for; ``history`` is all up to it, itself included.

    None if that cannot be told any more: the model, or its template, is another one than it was.
    """
    making = _MAKING.decode(record.making)
    items = decoded(history[: len(history) - len(record.outputs)])
    before = items[: len(items) - len(record.inputs)]
    try:
        prompt = endpoint.prompt_token_ids(making.request, items)
        earlier = endpoint.prompt_token_ids(making.request, before) if before else ()
    except ApiError:
        return None
    return Purge((*prompt, *making.output_token_ids), _num_common(prompt, earlier))


@contextmanager
def keeping() -> Iterator[None]:
    """Tells a client what the store cannot do. Raises ApiError."""
    try:
        yield
    except HistoryGoneError:
        raise previous_not_found("What this response builds on was deleted meanwhile.") from None
    except ConversationFullError:
        raise bad_request("conversation", "The conversation has as many items as one may have.") from None
    except DuplicateItemError:
        raise bad_request("input", "Two items have the same id.") from None
    except StateFullError:
        raise ApiError(
            ErrorKind.HISTORY_TOO_LARGE,
            "The history is larger than this server keeps (--state-size); send 'store': false.",
        ) from None


def kept(items: Sequence[Item]) -> tuple[ItemRecord, ...]:
    """Items as they are kept."""
    return tuple(ItemRecord(item.id, _ENCODER.encode(item)) for item in items)


def _num_common(first: Sequence[int], second: Sequence[int]) -> int:
    for i, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return i
    return min(len(first), len(second))
