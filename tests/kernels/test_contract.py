"""Worked examples of block tables and slots, and what -1 and 0 mean."""

import pytest
import torch

from noria.kernels.contract import (
    PAD_BLOCK_ID,
    PAD_SLOT_ID,
    KVGroup,
    check_tensor,
    compute_slots,
    num_blocks_for,
    remap_null_block,
    table_width,
)

BLOCKS = torch.tensor([10, 15, 22], dtype=torch.int32)


def positions(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_slot_of_position_100():
    assert compute_slots(BLOCKS, positions(100), 64).tolist() == [996]


def test_slots_cross_a_block_boundary():
    slots = compute_slots(BLOCKS, positions(62, 63, 64, 65), 64)

    assert slots.tolist() == [702, 703, 960, 961]
    assert slots.dtype == torch.int32


def test_prefill_of_100_tokens_in_bucket_128():
    slots = torch.full((128,), PAD_SLOT_ID, dtype=torch.int32)
    slots[:100] = compute_slots(BLOCKS, torch.arange(100, dtype=torch.int32), 64)

    assert num_blocks_for(100, 64) == 2
    assert slots[:64].tolist() == list(range(640, 704))
    assert slots[64:100].tolist() == list(range(960, 996))
    assert (slots >= 0).sum() == 100
    assert (slots == PAD_SLOT_ID).sum() == 28


def test_four_requests_of_four_tokens_each_take_their_own_slots():
    tables = [[10, 15, 22], [8, 12, 3], [1, 2, 4], [5, 6, 7]]
    first_positions = [50, 75, 100, 125]

    slots = [
        compute_slots(positions(*table), torch.arange(first, first + 4, dtype=torch.int32), 64)
        for table, first in zip(tables, first_positions, strict=True)
    ]

    assert slots[0].tolist() == [690, 691, 692, 693]
    assert slots[1].tolist() == [779, 780, 781, 782]
    assert slots[2].tolist() == [164, 165, 166, 167]
    assert slots[3].tolist() == [445, 446, 447, 448]
    assert len({slot for row in slots for slot in row.tolist()}) == 16


@pytest.mark.parametrize("block_size", [1, 3, 16, 128])
def test_slots_of_a_request_are_all_different(block_size: int):
    num_tokens = 3 * block_size

    slots = compute_slots(BLOCKS, torch.arange(num_tokens, dtype=torch.int32), block_size)

    expected = [
        int(BLOCKS[position // block_size]) * block_size + position % block_size
        for position in range(num_tokens)
    ]
    assert slots.tolist() == expected
    assert len(set(expected)) == num_tokens


def test_remap_turns_the_null_block_into_the_sentinel_out_of_place():
    table = torch.tensor([[10, 15, 0, 0], [8, 0, 0, 0]], dtype=torch.int32)

    remapped = remap_null_block(table)

    assert remapped.tolist() == [[10, 15, PAD_BLOCK_ID, PAD_BLOCK_ID], [8, -1, -1, -1]]
    assert remapped.dtype == torch.int32
    assert table.tolist() == [[10, 15, 0, 0], [8, 0, 0, 0]]
    assert remapped.data_ptr() != table.data_ptr()


def test_slots_of_a_remapped_table_are_not_the_sentinel():
    """Why slots come from the table before the remap: -1 would give -64..-1, mostly not -1."""
    remapped = remap_null_block(torch.zeros(1, dtype=torch.int32))

    slots = compute_slots(remapped, torch.arange(64, dtype=torch.int32), 64)

    assert slots.tolist() == list(range(-64, 0))


def test_sentinel_saturates_only_by_clamping_c11():
    table = torch.tensor([3, PAD_BLOCK_ID], dtype=torch.int32)

    assert table.clamp(min=0).tolist() == [3, 0]
    assert table.to(torch.uint32).tolist() == [3, 4294967295]
    assert table.numpy().astype("uint32").tolist() == [3, 4294967295]


@pytest.mark.parametrize(
    ("context_len", "fold_blocks", "width"),
    [(1, 1, 1), (16, 1, 1), (17, 1, 2), (2048, 1, 128), (2048, 128, 128), (2049, 128, 256)],
)
def test_table_width_is_whole_folds(context_len: int, fold_blocks: int, width: int):
    assert table_width(context_len, block_size=16, fold_blocks=fold_blocks) == width


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_blocks_hold_every_length_with_none_to_spare(block_size: int):
    for num_tokens in range(3 * block_size + 2):
        num_blocks = num_blocks_for(num_tokens, block_size)

        assert num_blocks * block_size >= num_tokens
        assert (num_blocks - 1) * block_size < max(num_tokens, 1)


def make_group(**changes: object) -> KVGroup:
    values: dict[str, object] = {
        "layers": (0, 1, 2),
        "num_blocks": 10,
        "block_size": 16,
        "num_kv_heads": 3,
        "k_dim": 64,
        "v_dim": 64,
        "dtype": torch.bfloat16,
    }
    return KVGroup(**{**values, **changes})


@pytest.mark.parametrize(
    ("dtype", "v_dim", "block_bytes"),
    [
        (torch.bfloat16, 64, 3 * 16 * 3 * 128 * 2),
        (torch.float32, 64, 3 * 16 * 3 * 128 * 4),
        (torch.float64, 32, 3 * 16 * 3 * 96 * 8),
    ],
    ids=str,
)
def test_block_bytes_are_those_of_the_tensors(dtype: torch.dtype, v_dim: int, block_bytes: int):
    group = make_group(dtype=dtype, v_dim=v_dim)

    caches = [torch.zeros(shape, dtype=dtype) for shape in (group.k_shape, group.v_shape)]

    assert group.block_bytes == block_bytes
    assert len(group.layers) * sum(c.nbytes for c in caches) == group.num_blocks * block_bytes


def test_check_tensor_accepts_the_exact_shape_and_dtype():
    check_tensor("slot_mapping", positions(1, 2), (2,), torch.int32)


def test_check_tensor_names_the_tensor_its_shape_and_what_fits():
    with pytest.raises(ValueError, match=r"slot_mapping has shape \(5,\), expected \(8,\)"):
        check_tensor("slot_mapping", positions(1, 2, 3, 4, 5), (8,))


def test_check_tensor_names_the_dtype():
    with pytest.raises(ValueError, match=r"ids has dtype torch.int32, expected torch.int64"):
        check_tensor("ids", positions(1), (1,), torch.int64)
