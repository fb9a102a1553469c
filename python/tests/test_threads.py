"""The pool: same bits for any number of threads, several callers at once, signals and forks; and how many threads there are."""

import os
import signal
import subprocess
import sys
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


# ---------------------------------------------------------------- signals


LONG_CALL = """
import os, signal, sys, threading, time
import numpy as np
import fovea
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started this may ignore it
threads, library = int(sys.argv[1]), sys.argv[2]
rng = np.random.default_rng(0)
q, small = (rng.standard_normal((1, 8, T, 64), dtype=np.float32) for T in (65536, 1024))  # a minute's work, and none
expected = fovea.attention(small, small, small, threads=threads)
if library != "numpy":
    import torch
    q = torch.from_numpy(q)
plan = fovea.Plan(q, q, q, threads=threads)
calls = [lambda: fovea.attention(q, q, q, threads=threads), lambda: plan.run(q, q, q)]
if library == "patched":                         # both kernels of PyTorch's
    import fovea.torch
    torch.set_grad_enabled(False)
    patch = fovea.torch.patch()
    patch.__enter__()
    sdpa = torch.nn.functional.scaled_dot_product_attention
    calls = [lambda: sdpa(q, q, q), lambda: sdpa(q, q, q[..., :32])]
for call in calls:
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    start = time.monotonic()
    timer.start()
    try:
        call()
    except KeyboardInterrupt:
        assert time.monotonic() - start < 10, "it ended late"
    else:
        sys.exit("it was not interrupted")
    assert np.array_equal(fovea.attention(small, small, small, threads=threads), expected)
print("fine")
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("threads, library", [(1, "numpy"), (2, "numpy"), (2, "torch"), (2, "patched")])
def test_ctrl_c_ends_a_long_call(threads, library):
    if library != "numpy":
        pytest.importorskip("torch")
    run = subprocess.run([sys.executable, "-c", LONG_CALL, str(threads), library], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0 and run.stdout.strip() == "fine", run.stderr


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="signals of POSIX")
def test_handlers_that_do_not_raise_change_nothing():
    q, k, v = problem(2048)
    expected = fovea.attention(q, k, v, threads=2)
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        got = [fovea.attention(q, k, v, threads=2) for _ in range(3)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen and all(np.array_equal(g, expected) for g in got)


# ---------------------------------------------------------------- forks and PyTorch's threads

CHILD = """
import os, sys, torch
when = sys.argv[1]
if when == "before":
    import fovea
torch.set_num_threads(2)
a = torch.randn(1 << 20)
for _ in range(3):
    a = a * 2 + 1                                  # on PyTorch's threads, which the child will lack
child = os.fork()
if child == 0:
    import fovea
    q = torch.randn(2, 4, 512, 64)
    out = fovea.attention(q, q, q, threads=2)
    os._exit(0 if bool(torch.isfinite(out.view(-1)[:10]).all()) else 1)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_child_of_a_parent_that_ran_pytorchs_threads(when):
    """Fovea is imported before the fork and not used, or only behind it."""
    pytest.importorskip("torch")
    # The whole group is ended where the child hangs.
    process = subprocess.Popen([sys.executable, "-c", CHILD, when], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        pytest.fail("the child hangs")
    assert out.strip() == "0", err


# ---------------------------------------------------------------- how many CPUs


def groups(tmp_path, cgroup, mounts, files):
    proc = tmp_path / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(cgroup)
    (proc / "mountinfo").write_text("22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n" + mounts)
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return fovea._core._cpu_quota(str(tmp_path))


V2 = "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "31 22 0:27 ROOT /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct\n32 22 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


@pytest.mark.parametrize(
    "expected, cgroup, mounts, files",
    [
        (0, "", "", {}),
        (0, "0::/a\n", V2, {"sys/fs/cgroup/a/cpu.max": "max 100000\n"}),
        (1.5, "0::/a\n", V2, {"sys/fs/cgroup/a/cpu.max": "150000 100000\n"}),
        (2, "0::/a/b/c\n", V2, {"sys/fs/cgroup/a/cpu.max": "200000 100000\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/b/c/cpu.max": "40000 10000\n"}),
        (0.5, "0::/\n", V2, {"sys/fs/cgroup/cpu.max": "50000 100000\n"}),
        (3, "4:cpu,cpuacct:/a/b\n3:memory:/x\n0::/\n", V1.replace("ROOT", "/"), {
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "300000\n", "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us": "100000\n"}),
        (2.5, "4:cpu,cpuacct:/docker/1234\n", V1.replace("ROOT", "/docker/1234"), {
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n"}),
        (1, "4:cpu,cpuacct:/a\n0::/b\n", V1.replace("ROOT", "/") + V2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified "), {
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "400000\n", "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/unified/b/cpu.max": "100000 100000\n"}),
    ],
)  # fmt: skip
def test_quotas_of_control_groups(tmp_path, expected, cgroup, mounts, files):
    assert groups(tmp_path, cgroup, mounts, files) == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity")
def test_threads_follow_the_affinity():
    program = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); import fovea; print(fovea.get_threads())"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "1"
