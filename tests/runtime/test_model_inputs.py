from __future__ import annotations

import numpy as np
import pytest

from noria.bucketing import DecodeBucket, PrefillBucket
from noria.runtime.block_table import BlockTable
from noria.runtime.graph_spec import GraphLayout, GroupLayout, graph_spec, num_logits_rows
from noria.runtime.model_inputs import fill_padding, fill_step
from noria.runtime.scheduler_output import Phase, ScheduledRequest, SchedulerOutput


def layout(block_size=64, max_num_prefill_seqs=2, prefill_tile=1, fold_blocks=1) -> GraphLayout:
    return GraphLayout((GroupLayout(block_size),), max_num_prefill_seqs, prefill_tile, fold_blocks)


def request(token_ids, computed, *tables) -> ScheduledRequest:
    return ScheduledRequest("r", token_ids, computed, tuple(BlockTable(0, t) for t in tables))


def filled(bucket, requests, shape, garbage=-77):
    """Fill a graph's buffers that hold garbage of an earlier step."""
    spec = graph_spec(bucket, shape)
    arrays = {i.name: np.full(i.shape, garbage, dtype=np.int32) for i in spec}
    phase = Phase.PREFILL if isinstance(bucket, PrefillBucket) else Phase.DECODE
    fill_step(arrays, SchedulerOutput(phase, tuple(requests)), spec, shape)
    return arrays


def test_100_tokens_in_bucket_128_write_100_slots_and_skip_28():
    arrays = filled(PrefillBucket(128, 256), [request(range(100), 0, (10, 15))], layout())

    slots = arrays["slot_mapping_0"]
    assert slots[:100].tolist() == [*range(640, 704), *range(960, 996)]
    assert slots[100:].tolist() == [-1] * 28
    assert arrays["positions"].tolist() == [*range(100), *[0] * 28]
    assert arrays["logits_positions"].tolist() == [99, 99]
    assert arrays["block_table_0"].tolist() == [[10, 15, -1, -1], [-1, -1, -1, -1]]


def test_two_requests_in_decode_bucket_8():
    requests = [request([5], 100, (10, 15)), request([6], 3, (8,))]

    arrays = filled(DecodeBucket(8, 256), requests, layout())

    assert arrays["input_ids"].tolist() == [5, 6, 0, 0, 0, 0, 0, 0]
    assert arrays["positions"].tolist() == [100, 3, 0, 0, 0, 0, 0, 0]
    assert arrays["slot_mapping_0"].tolist() == [996, 515, -1, -1, -1, -1, -1, -1]
    assert arrays["context_lens"].tolist() == [100, 3, 0, 0, 0, 0, 0, 0]
    assert arrays["query_lens"].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    assert arrays["logits_positions"].tolist() == [0, 1, 1, 1, 1, 1, 1, 1]
    assert (arrays["block_table_0"][2:] == -1).all()


def test_four_requests_of_four_tokens_take_consecutive_positions():
    starts, bucket = (50, 75, 100, 125), DecodeBucket(4, 256, query_len=4)
    requests = [request([1, 2, 3, 4], start, (10, 15, 22)) for start in starts]

    arrays = filled(bucket, requests, layout())

    expected = [start + offset for start in starts for offset in range(4)]
    assert arrays["positions"].tolist() == expected
    assert arrays["logits_positions"].tolist() == list(range(16))


def test_tokens_over_a_block_border_get_slots_702_703_960_961():
    bucket = DecodeBucket(1, 256, query_len=4)

    arrays = filled(bucket, [request([1, 2, 3, 4], 62, (10, 15))], layout())

    assert arrays["slot_mapping_0"].tolist() == [702, 703, 960, 961]


def test_a_row_with_fewer_tokens_than_q_repeats_its_own_last_one():
    bucket = DecodeBucket(2, 256, query_len=4)
    requests = [request([1, 2], 10, (3,)), request([1, 2, 3], 20, (4,))]

    arrays = filled(bucket, requests, layout())

    assert arrays["logits_positions"].tolist() == [0, 1, 1, 1, 4, 5, 6, 6]
    assert arrays["slot_mapping_0"][[2, 3, 7]].tolist() == [-1, -1, -1]
    assert arrays["query_lens"].tolist() == [2, 3]


def test_packed_requests_start_at_tile_borders():
    shape = layout(max_num_prefill_seqs=4, prefill_tile=16)
    requests = [request(range(20), 0, (1,)), request(range(5), 40, (2,))]

    arrays = filled(PrefillBucket(64, 128), requests, shape)

    assert arrays["query_start_loc"].tolist() == [0, 32, 48, 48, 48]
    assert arrays["tile_request"].tolist() == [0, 0, 1, -1]
    assert arrays["query_lens"].tolist() == [20, 5, 0, 0]
    assert arrays["context_lens"].tolist() == [0, 40, 0, 0]
    assert arrays["logits_positions"].tolist() == [19, 36, 36, 36]
    assert (arrays["slot_mapping_0"][20:32] == -1).all()
    assert arrays["slot_mapping_0"][32:37].tolist() == list(range(168, 173))


def test_c07_nothing_of_an_earlier_step_is_left_in_a_reused_row():
    bucket, shape = DecodeBucket(4, 1024), layout(block_size=16)
    spec = graph_spec(bucket, shape)
    arrays = {i.name: np.zeros(i.shape, dtype=np.int32) for i in spec}
    long = SchedulerOutput(Phase.DECODE, (request([1], 95, (1, 2, 3, 4, 5, 6)),) * 4)
    short = SchedulerOutput(Phase.DECODE, (request([1], 17, (7, 8)),))

    fill_step(arrays, long, spec, shape)
    fill_step(arrays, short, spec, shape)

    fresh = filled(bucket, short.requests, shape)
    assert all((arrays[name] == fresh[name]).all() for name in fresh)
    assert (arrays["block_table_0"][0, 2:] == -1).all()
    assert (arrays["block_table_0"][1:] == -1).all()


def test_slots_come_from_the_table_before_the_remap():
    arrays = filled(DecodeBucket(2, 256), [request([1], 64, (3, 4))], layout())

    assert arrays["slot_mapping_0"].tolist() == [256, -1]


def test_an_all_padding_step_names_row_zero_and_writes_nothing():
    for bucket in (PrefillBucket(32, 64), DecodeBucket(4, 64)):
        spec = graph_spec(bucket, layout())
        arrays = {i.name: np.full(i.shape, -77, dtype=np.int32) for i in spec}

        fill_padding(arrays, spec)

        assert (arrays["slot_mapping_0"] == -1).all()
        assert (arrays["block_table_0"] == -1).all()
        assert (arrays["logits_positions"] == 0).all()
        assert (arrays["query_lens"] == 0).all()


def test_each_kv_group_has_its_own_table_and_slots():
    shape = GraphLayout((GroupLayout(4), GroupLayout(8)), 2, 1, 1)

    arrays = filled(DecodeBucket(2, 32), [request([9], 9, (1, 2, 3), (5, 6))], shape)

    assert arrays["slot_mapping_0"].tolist() == [13, -1]
    assert arrays["slot_mapping_1"].tolist() == [49, -1]
    assert arrays["block_table_0"].shape == (2, 8)
    assert arrays["block_table_1"].tolist() == [[5, 6, -1, -1], [-1, -1, -1, -1]]


@pytest.mark.parametrize("active", range(1, 9))
def test_c05_b12_every_input_has_exactly_the_shape_of_the_bucket(active):
    bucket, shape = DecodeBucket(8, 128), layout(fold_blocks=128)
    requests = [request([1], i, (1 + i,)) for i in range(active)]

    arrays = filled(bucket, requests, shape)

    expected = {i.name: i.shape for i in graph_spec(bucket, shape)}
    assert {name: array.shape for name, array in arrays.items()} == expected
    assert expected["block_table_0"] == (8, 128)
    assert not any((array == -77).any() for array in arrays.values())
    assert num_logits_rows(bucket, shape) == 8


def test_b09_the_last_position_of_an_odd_limit_has_a_block():
    bucket, shape = DecodeBucket(1, 1000), layout(block_size=48)
    blocks = tuple(range(1, 22))

    arrays = filled(bucket, [request([1], 999, blocks)], shape)

    assert arrays["block_table_0"].shape == (1, 21)
    assert arrays["slot_mapping_0"].tolist() == [21 * 48 + 999 % 48]
