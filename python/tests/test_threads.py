"""The pool: same bits for any number of threads, several callers at once, and forks."""

import os
import threading

import numpy as np
import pytest

import fovea


def problem(T=512):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 4, T, 64), dtype=np.float32) for _ in range(3)]


def test_results_do_not_depend_on_threads():
    q, k, v = problem()
    expected = fovea.attention(q, k, v, threads=1)
    for threads in (2, 3, 7):
        assert np.array_equal(fovea.attention(q, k, v, threads=threads), expected)


def test_default():
    before = fovea.get_threads()
    assert before >= 1
    try:
        fovea.set_threads(3)
        assert fovea.get_threads() == 3
    finally:
        fovea.set_threads(before)


def test_many_callers():
    q, k, v = problem(256)
    expected = fovea.attention(q, k, v, threads=1)
    plan = fovea.Plan(q, k, v, threads=3)
    wrong = []

    def work():
        for _ in range(20):
            if not np.array_equal(fovea.attention(q, k, v, threads=3), expected):
                wrong.append("attention")
            if not np.array_equal(plan.run(q, k, v), expected):
                wrong.append("plan")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_updates_wait_for_runs():
    q, k, v = problem(256)
    plan = fovea.Plan(q, k, v, kv_lengths=[256, 256], threads=2)
    expected = {n: fovea.attention(q, k, v, kv_lengths=[n, n]) for n in (64, 256)}
    stop = threading.Event()
    failures = []

    def run():
        while not stop.is_set():
            try:
                out = plan.run(q, k, v)
            except ValueError as error:  # the lengths are those of another moment
                if "kv_lengths" not in str(error):
                    failures.append(error)
                continue
            if not any(np.array_equal(out, e) for e in expected.values()):
                failures.append("neither of the two")

    threads = [threading.Thread(target=run) for _ in range(2)]
    for t in threads:
        t.start()
    for i in range(50):
        plan.update(q, k, v, kv_lengths=[64, 64] if i % 2 == 0 else [256, 256])
    stop.set()
    for t in threads:
        t.join()
    assert not failures


def test_the_gil_is_released():
    """Another thread counts while a long call runs."""
    q, k, v = problem(2048)
    counted = 0
    done = threading.Event()

    def count():
        nonlocal counted
        while not done.is_set():
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = counted
    fovea.attention(q, k, v, threads=1)
    during = counted - before
    done.set()
    thread.join()
    assert during > 1000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the point of the test: a fork with threads
def test_fork():
    q, k, v = problem()
    expected = fovea.attention(q, k, v, threads=2)  # the parent's pool has threads that the child lacks
    child = os.fork()
    if child == 0:
        ok = all(np.array_equal(fovea.attention(q, k, v, threads=2), expected) for _ in range(3))
        os._exit(0 if ok else 1)
    for _ in range(3):
        assert np.array_equal(fovea.attention(q, k, v, threads=2), expected)
    assert os.waitpid(child, 0)[1] == 0
