"""Block tables of groups: forks, copies before a write, branches that wait, and refusals."""

from __future__ import annotations

from tests.test_block_manager import NAMES, manager
from tiering import integrity
from tiering.block_manager import BlockManager
from tiering.tables import Admission, Member, Refusal
from tiering.types import BlockCopy


def admit(blocks: BlockManager, *members: Member, keep: int = 0) -> Admission | Refusal:
    found = blocks.try_admit(members, keep_available=keep)
    assert integrity.check(blocks) == []
    return found


def member(name: str, tokens: int, names: int, other: int = 0) -> Member:
    """A history of so many tokens, of whose full blocks the last ``other`` are its own."""
    own = [NAMES[16 + ord(name) % 8]] * other
    return Member(name, [*NAMES[: names - other], *own], tokens, tokens)


def test_a_fork_shares_everything_and_the_last_writer_keeps_the_block() -> None:
    blocks = manager(8)
    admit(blocks, Member("a", (), 6, 6))
    for child in ("b", "c"):
        blocks.fork("a", child, 6)
    assert blocks.usage().in_use == 2
    assert integrity.check(blocks) == []
    tail = blocks.block_table("a")[1]
    assert blocks.try_grow([("a", 7), ("b", 7), ("c", 7)])
    copies = blocks.take_copies()
    assert [copy.source for copy in copies] == [tail, tail]
    assert copies == tuple(BlockCopy(tail, blocks.block_table(name)[1]) for name in ("a", "b"))
    assert blocks.block_table("c")[1] == tail
    assert blocks.take_copies() == ()
    assert blocks.usage().in_use == 4
    assert integrity.check(blocks) == []


def test_growth_of_a_group_is_all_or_nothing() -> None:
    blocks = manager(4)
    admit(blocks, Member("a", (), 8, 8))
    blocks.fork("a", "b", 8)
    blocks.fork("a", "c", 8)
    assert not blocks.try_grow([("a", 9), ("b", 9), ("c", 9)])
    assert blocks.usage().in_use == 2
    assert blocks.take_copies() == ()
    blocks.release("c")
    assert blocks.try_grow([("a", 9), ("b", 9)])
    assert blocks.take_copies() == (), "a new block needs no copy"
    assert integrity.check(blocks) == []


def test_one_that_writes_alone_copies_what_the_others_keep() -> None:
    blocks = manager(4)
    admit(blocks, Member("a", (), 3, 3))
    blocks.fork("a", "b", 3)
    assert blocks.try_grow([("b", 4)])
    (copy,) = blocks.take_copies()
    assert (copy.source, copy.target) == (blocks.block_table("a")[0], blocks.block_table("b")[0])
    assert blocks.try_grow([("a", 4)])
    assert blocks.take_copies() == ()


def test_block_number_zero_is_shared_like_any_other() -> None:
    blocks = manager(2)
    admit(blocks, Member("a", (), 1, 1))
    assert list(blocks.block_table("a")) == [0]
    blocks.fork("a", "b", 1)
    assert blocks.try_grow([("a", 2), ("b", 2)])
    assert [copy.source for copy in blocks.take_copies()] == [0]


def test_branches_have_their_blocks_and_wait_for_their_parents() -> None:
    blocks = manager(16)
    members = [member("a", 13, 3), member("b", 13, 3, other=1), member("c", 9, 2, other=1)]
    admission = admit(blocks, *members)
    assert isinstance(admission, Admission)
    assert admission.num_cached_tokens == (0, 0, 0)
    assert blocks.tables().keys() == {"a"}
    shared = {name: branch.num_shared_tokens for name, branch in blocks.branches().items()}
    assert shared == {"b": 8, "c": 4}
    assert blocks.usage().in_use == 4 + 2 + 2
    assert blocks.bear("b") == 8
    assert list(blocks.block_table("b")[:2]) == list(blocks.block_table("a")[:2])
    assert integrity.check(blocks) == []
    blocks.release("c")
    blocks.release("a")
    blocks.release("b")
    assert blocks.usage().free == 16


def test_a_branch_leaves_itself_a_token_to_compute() -> None:
    blocks = manager(16)
    twins = [Member("a", NAMES[:2], 8, 8), Member("b", NAMES[:2], 8, 8)]
    admit(blocks, *twins)
    branch = blocks.branch_of("b")
    assert branch is not None
    assert branch.num_shared_tokens == 4


def test_a_branch_may_share_most_with_another_branch() -> None:
    blocks = manager(16)
    first = Member("a", NAMES[:3], 13, 13)
    second = Member("b", [NAMES[0], NAMES[20], NAMES[21]], 13, 13)
    third = Member("c", [NAMES[0], NAMES[20], NAMES[22]], 13, 13)
    admit(blocks, first, second, third)
    branch = blocks.branch_of("c")
    assert branch is not None
    assert (branch.parent_id, branch.num_shared_tokens) == ("b", 8)


def test_a_group_without_room_gets_nothing() -> None:
    blocks = manager(5)
    members = [Member("a", NAMES[:2], 9, 9), Member("b", [NAMES[0], NAMES[9]], 9, 9)]
    assert admit(blocks, *members, keep=1) is Refusal.NO_ROOM
    assert blocks.usage().free == 5
    assert isinstance(admit(blocks, *members), Admission)
