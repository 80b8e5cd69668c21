"""Whatever a setting holds, it is read or refused in one line; Python's limits never show."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.runtime.config import config_rows, parse_config
from noria.runtime.errors import ConfigError

HUGE = "0x1" + "0" * 4000
"""Python refuses to write it in decimal."""
SIZE = "must be an integer of at least 1"
MEMORY = "must be a whole number of bytes or a size such as 512MiB or 2GiB"

HUGE_NUMBERS = {
    f"num_threads: {HUGE}": f"num_threads: is a number of 16001 bits; {SIZE}",
    f"num_seqs_buckets: [{HUGE}]": f"num_seqs_buckets[0]: is a number of 16001 bits; {SIZE}",
    f"num_seqs_buckets: {HUGE}": (
        "num_seqs_buckets: is a number of 16001 bits (an integer); "
        "must be a list of integers, like [128, 256]"
    ),
    f"num_seqs_buckets: '{'9' * 5000}'": (
        f"num_seqs_buckets: is '{'9' * 27}...{'9' * 28}' (a string); "
        "must be a list of integers, like [128, 256]"
    ),
    f"max_num_seqs: [{HUGE}]": (
        "max_num_seqs: is [a number of 16001 bits] (a list); must be an integer from 1 to 2**31 - 1"
    ),
    f"sampling: {{stop_token_ids: [{HUGE}]}}": (
        "sampling.stop_token_ids[0]: is a number of 16001 bits (an integer); must be an integer"
    ),
    f"sampling: {{temperature: {HUGE}}}": (
        "sampling.temperature: is a number of 16001 bits (an integer); must be a number"
    ),
    f"kv_cache_memory: {'9' * 5000}MiB": (
        f"kv_cache_memory: is '{'9' * 27}...{'9' * 25}MiB' (a string); {MEMORY}"
    ),
    f"kv_cache_memory: {HUGE}": (
        f"kv_cache_memory: is a number of 16001 bits (an integer); {MEMORY}"
    ),
    f"? {HUGE}\n: 8": (
        "a number of 16001 bits: the key is a number of 16001 bits (an integer); "
        "settings have names"
    ),
    f"model: {{vocab_size: {HUGE}, num_attention_heads: 2}}": (
        "model: vocab_size must be at most 1048576, not a number of 16001 bits"
    ),
}

ANY_VALUE = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 600),
        st.floats(),
        st.text(max_size=3),
        st.sampled_from([2**31, 2**64, 10**400, "9" * 5000, "9" * 5000 + "MiB", "auto", "1e5"]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@pytest.mark.parametrize(("line", "message"), HUGE_NUMBERS.items(), ids=lambda text: text[:25])
def test_a_number_that_python_cannot_write_is_one_line(
    refusal_by_check: Callable[[str], str], line: str, message: str
) -> None:
    text = line if line.startswith("model") else f"model: x\n{line}"

    assert refusal_by_check(text) == message


@given(st.sampled_from([row.key for row in config_rows()]), ANY_VALUE)
def test_any_value_is_read_or_refused_in_one_line(key: str, value: object) -> None:
    section, _, name = key.rpartition(".")
    settings: dict[str, object] = {section: {name: value}} if section else {name: value}
    message = "c.yaml: "
    try:
        config = parse_config({"model": "x", **settings}, source="c.yaml")
    except ConfigError as error:
        message = str(error)
    else:
        assert json.dumps(config.to_mapping())

    assert message.startswith("c.yaml: ")
    assert len(message) < 1000
