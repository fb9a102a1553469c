"""What the machine is, and what of it this process may use."""

import ctypes
import datetime
import os
import platform
import re
import subprocess

_ARCH_PRCTL, _GET_PERMITTED, _TILE_DATA = 158, 0x1022, 18  # of Linux on x86-64


def _from_proc(key):
    with open("/proc/cpuinfo") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return ""


def cpu_name():
    """As `fovea bench` names it: virtual machines hide the product's number, but not its generation."""
    name, family, model = (_from_proc(key) for key in ("model name", "cpu family", "model"))
    return f"{name or platform.machine()} (family {family}, model {model})" if family and model else name or platform.machine()


def file_name(cpu):
    """ "Intel(R) Xeon(R)" → "intel-r-xeon-r" """
    return re.sub(r"[^0-9a-z]+", "-", cpu.lower()).strip("-") or "unknown"


def amx_permitted():
    """Whether this process has asked the kernel for AMX's tiles: a library that uses them must have."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return False
    mask = ctypes.c_uint64()
    if ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _GET_PERMITTED, ctypes.byref(mask)) != 0:
        return False
    return bool(mask.value >> _TILE_DATA & 1)


def describe(root):
    flags = _from_proc("flags").split() or _from_proc("Features").split()
    interesting = re.compile(r"^(sse4_2|avx|fma|f16c|amx|asimd|sve|bf16|i8mm|fphp)")
    revision = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "flags": " ".join(flag for flag in flags if interesting.match(flag)),
        "load": round(os.getloadavg()[0], 2),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "revision": revision,
    }
