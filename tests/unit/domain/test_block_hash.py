"""Block names are content only: pinned bytes, equal in every process."""

import subprocess
import sys

import pytest

from services.domain.block_hash import BLOCK_SIZE, hash_block, hash_blocks

SALT = b"s" * 32
GOLDEN = [
    "301ea3a73331b58f15e661ce878a7dcf",
    "70ae62c129737345c3e1673cd1f246dc",
    "5af2bcb7a8f54a6b51076f3e3b9a6bdf",
]


def test_golden_vectors() -> None:
    assert [block.hex() for block in hash_blocks(range(48), salt=SALT)] == GOLDEN
    assert hash_blocks(range(16), salt=b"", adapter=b"lora")[0].hex() == "75784f82d343efd7c560b4d5f5b49cda"


@pytest.mark.failure("B046")
def test_other_processes_give_the_same_bytes() -> None:
    code = (
        "from services.domain.block_hash import hash_blocks;"
        f"print(*[b.hex() for b in hash_blocks(range(48), salt={SALT!r})])"
    )
    for seed in ("0", "1", "random"):
        environment = {"PYTHONHASHSEED": seed}
        output = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert output.stdout.split() == GOLDEN


def test_an_incomplete_block_has_no_name() -> None:
    assert len(hash_blocks(range(BLOCK_SIZE * 2 - 1), salt=SALT)) == 1
    with pytest.raises(ValueError, match="16 token ids"):
        hash_block(None, range(15), salt=SALT)


@pytest.mark.failure("B050")
def test_salt_adapter_and_history_are_part_of_the_name() -> None:
    plain = hash_blocks(range(32), salt=SALT)
    assert plain != hash_blocks(range(32), salt=b"t" * 32)
    assert plain != hash_blocks(range(32), salt=SALT, adapter=b"a")
    moved = hash_blocks([99, *range(1, 32)], salt=SALT)
    assert plain[1] != moved[1]


def test_a_chain_can_be_continued() -> None:
    whole = hash_blocks(range(64), salt=SALT)
    head = hash_blocks(range(32), salt=SALT)
    assert whole == head + hash_blocks(range(32, 64), salt=SALT, previous=head[-1])


@pytest.mark.failure("B035")
def test_parts_are_length_prefixed() -> None:
    ids = range(16)
    assert hash_blocks(ids, salt=b"ab", adapter=b"c") != hash_blocks(ids, salt=b"a", adapter=b"bc")
