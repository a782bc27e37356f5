"""References as they lie on a device; on the CPU, as torch allows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.workers.building import doubled, lowered, norm

from nearhint_compiler.ir import nodes as ir
from nearhint_daemon.workers import sent_references
from nearhint_daemon.workers.elements import drawn_of
from nearhint_daemon.workers.reference import Reference
from nearhint_daemon.workers.sent_references import (
    BLOCK_BYTES,
    SentReferences,
    as_words,
    comparable,
    outputs_of,
    weighed,
)
from nearhint_daemon.workers.verify import References, cases
from nearhint_rules.guard import ALWAYS


def references_of(kernel: ir.Kernel, hint: int) -> list[Reference]:
    """Of all cases, each once."""
    kept = References()
    found = [
        kept.get(kernel, case.sizes, seed=1, draw=case.draw)
        for case in cases(
            kernel, ALWAYS, [dict.fromkeys(kernel.symbols, hint)], threads=1, can_shift=False
        )
    ]
    return list({id(each): each for each in found}.values())


@pytest.mark.parametrize("hint", [100, 1500])
def test_what_is_sent_is_what_there_is(hint: int) -> None:
    kernel, _ = lowered(norm())
    wanted = references_of(kernel, hint)
    for sent, reference in zip(SentReferences("cpu").of(kernel, wanted), wanted, strict=True):
        assert sent.reference is reference
        for drawn, content in zip(sent.inputs, reference.inputs, strict=True):
            assert (drawn is None) == (content is None)
            if drawn is not None and content is not None:
                np.testing.assert_array_equal(drawn.numpy(), as_words(drawn_of(content)))
        for position, place in enumerate(outputs_of(kernel)):
            output, slabs = sent.outputs[position], [slab[position] for slab in reference.slabs]
            assert output.dtype == kernel.params[place].dtype
            for found, arrays in (
                (output.places, [each.indices for each in slabs]),
                (output.values, [comparable(output.dtype, each) for each in slabs]),
                (output.allowed, [each.allowed for each in slabs]),
            ):
                np.testing.assert_array_equal(found.numpy(), np.concatenate(arrays))
            if output.covered is None:
                assert not reference.covered
            else:
                np.testing.assert_array_equal(output.covered.numpy(), reference.covered[position])


def test_each_is_packed_and_sent_once_and_many_share_a_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed: list[Reference] = []
    pack = sent_references._Packed.__init__

    def counted(self: sent_references._Packed, kernel: ir.Kernel, reference: Reference) -> None:
        packed.append(reference)
        pack(self, kernel, reference)

    monkeypatch.setattr(sent_references._Packed, "__init__", counted)
    wanted = references_of(doubled(), 100)
    references = SentReferences("cpu")
    first = references.of(doubled(), [*wanted, *wanted])
    assert first[: len(wanted)] == first[len(wanted) :]
    assert references.of(doubled(), wanted[::-1]) == first[: len(wanted)][::-1]
    assert references.size_bytes == BLOCK_BYTES
    assert list(map(id, packed)) == list(map(id, wanted))


def test_what_does_not_fit_beside_the_others_is_sent_without_them() -> None:
    one, *others = references_of(doubled(), 100)
    references = SentReferences("cpu", limit_bytes=1)
    (first,) = references.of(doubled(), [one])
    assert references.of(doubled(), [one]) == [first]
    for other in others[:3]:
        references._blocks[-1]._used = BLOCK_BYTES
        references.of(doubled(), [other])
        assert references.size_bytes == BLOCK_BYTES
    assert references.of(doubled(), [one]) != [first]


def test_any_byte_that_changes_is_noticed_and_nothing_else() -> None:
    references = SentReferences("cpu")
    assert references.are_intact()
    references.of(doubled(), references_of(doubled(), 100))
    references._blocks[0]._used = BLOCK_BYTES
    references.of(doubled(), references_of(doubled(), 1500))
    assert len(references._blocks) == 2
    assert references.are_intact()
    for block in references._blocks:
        for place in (0, 7, 12_345, block.size_bytes - 1):
            block._bytes[place] ^= 0x80
            assert not references.are_intact()
            block._bytes[place] ^= 0x80
    assert references.are_intact()
    words = references._blocks[0].words
    words[[0, 1]] = words[[1, 0]]
    assert words[0] != words[1]
    assert not references.are_intact()


def test_the_sum_of_parts_is_that_of_the_whole() -> None:
    words = torch.randint(-(1 << 62), 1 << 62, (1000,))
    parts = weighed(words[:300]) + weighed(words[300:], first=300)
    assert parts.item() == weighed(words).item()
    exact = sum(int(word) * (2 * place + 1) for place, word in enumerate(words.tolist()))
    assert (exact - int(parts)) % (1 << 64) == 0
