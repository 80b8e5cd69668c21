"""Peers in processes of their own: replies, failures and endings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from noria.runtime.bench.offline import measure
from noria.runtime.bench.peer_process import PeerError, PeerProcess
from noria.runtime.bench.workload import Workload

Make = Callable[..., PeerProcess]


@contextmanager
def started(peer: PeerProcess) -> Iterator[PeerProcess]:
    try:
        peer.start()
        yield peer
    finally:
        peer.stop()


def test_a_peer_loads_runs_and_tells_its_version(fake_process: Make) -> None:
    peer = fake_process("works")

    version = peer.start().version
    run = peer.run([[1, 2], [8]], 3)
    peak = peer.peak_rss_bytes()
    peer.stop()

    assert version == "7"
    assert run.token_ids == ((3, 4, 5), (9, 10, 11))
    assert run.seconds >= 0
    assert peak is None or peak > 2**20


def test_what_a_library_prints_does_not_mix_with_replies(fake_process: Make) -> None:
    with started(fake_process("chatters")) as peer:
        run = peer.run([[1]], 1)

    assert run.token_ids == ((2,),)


def test_an_engine_that_refuses_its_model_says_so_in_one_line(fake_process: Make) -> None:
    peer = fake_process("refuses")

    with pytest.raises(PeerError, match=r"^ValueError: no such model$"):
        peer.start()
    peer.stop()


def test_a_crash_is_reported_with_its_status_and_last_words(fake_process: Make) -> None:
    with started(fake_process("crashes")) as peer:
        peer.run([[1]], 1)

        with pytest.raises(PeerError, match=r"^its process ended with status 9: out of memory$"):
            peer.run([[1]], 1)
        with pytest.raises(PeerError, match=r"^its process ended with status 9: out of memory$"):
            peer.run([[1]], 1)


def test_a_peer_that_hangs_is_ended(fake_process: Make) -> None:
    ended = pytest.raises(PeerError, match=r"^gave no answer within 0.2 s and was ended$")

    with started(fake_process("hangs", run_timeout_s=0.2)) as peer, ended:
        peer.run([[1]], 1)


def test_too_few_ids_are_no_result(fake_process: Make) -> None:
    short = pytest.raises(PeerError, match=r"2 lists of \[3\] ids for 2 prompts of 4 new tokens")

    with started(fake_process("stops early")) as peer, short:
        peer.run([[1], [2]], 4)


def test_a_command_that_does_not_exist_is_named(fake_process: Make) -> None:
    peer = fake_process("works", command=("no-such-interpreter",))

    with pytest.raises(PeerError, match=r"^no-such-interpreter: No such file or directory$"):
        peer.start()
    peer.stop()


def test_a_peer_that_is_not_running_cannot_run(fake_process: Make) -> None:
    with pytest.raises(PeerError, match="is not running"):
        fake_process("works").run([[1]], 1)


def test_stopping_twice_is_stopping_once(fake_process: Make) -> None:
    peer = fake_process("works")
    peer.start()

    peer.stop()
    peer.stop()

    assert peer.peak_rss_bytes() is None


def test_a_crash_loses_no_result_of_the_others(fake_process: Make) -> None:
    workload = Workload(num_prompts=2, prompt_len=3, new_tokens=8, vocab_size=50)
    peers = [fake_process("crashes"), fake_process("works"), fake_process("refuses")]

    results = measure(peers, workload, num_rounds=2, progress=lambda *_: None)

    assert [len(result.samples) for result in results] == [0, 2, 0]
    assert results[0].problem == "its process ended with status 9: out of memory"
    assert results[1].problem is None
    assert results[2].problem == "ValueError: no such model"
    assert results[0].first_ids == results[1].first_ids
