#!/usr/bin/env python3
"""What the tile engines' inner loops reach on Arm cores, as a share of their multiply-add peak, without Arm hardware.

Clang compiles arm_kernels.cc for AArch64; llvm-mca, with LLVM's model of a core, says how many cycles a round of each innermost loop takes with
every load in L1, and how many the same number of independent multiply-adds (or dot products) take. The quotient is the share.

    bench/arm_throughput.py            # a table
    bench/arm_throughput.py --check    # fails where a share fell below arm_throughput.json by more than a point, or below 85 % on a Neoverse
    bench/arm_throughput.py --update   # writes arm_throughput.json

A model is no measurement: caches, branches and the front end are not in it. LLVM takes a Cortex-A76 for one with half its vector units, so both
numbers of its quotient are too small.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "bench" / "arm_throughput.json"
CORES = ["neoverse-v1", "neoverse-v2", "neoverse-n2", "cortex-a76", "cortex-a55"]
WITHOUT_BF16 = ["cortex-a76", "cortex-a55"]
# Highway's name of a target, the kernels that count there, and their instruction.
KERNELS = {
    ("NEON_WITHOUT_AES", "F32Scores"): "fmla",
    ("NEON_WITHOUT_AES", "F32Accumulate"): "fmla",
    ("NEON_BF16", "BF16Scores"): "bfdot",
    ("NEON_BF16", "BF16Accumulate"): "bfdot",
}
INDEPENDENT = {"fmla": "fmla v{}.4s, v30.4s, v31.4s", "bfdot": "bfdot v{}.4s, v30.8h, v31.8h"}
SUMS = 24
LEAST_ON_NEOVERSE = 0.85
TOLERANCE = 0.01


def assembly(compiler, highway):
    command = [compiler, "--target=aarch64-linux-gnu", "-O3", "-std=c++17", "-S", "-o", "-", f"-I{ROOT}", f"-I{ROOT}/src", f"-I{ROOT}/include",
               f"-I{highway}", str(ROOT / "bench" / "arm_kernels.cc")]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def innermost_loop(text, target, kernel, instruction):
    """Instructions of the loop that has most of `instruction`: from a label to the branch back to it, without another label between."""
    start = re.search(rf"^_ZN5fovea\d+N_{target}\d+{kernel}E\w*:", text, re.M)
    if start is None:
        sys.exit(f"no function {kernel} for {target}")
    lines = text[start.end():text.index(".Lfunc_end", start.end())].split("\n")
    best = []
    for first, line in enumerate(lines):
        label = re.match(r"(\.LBB\w+):", line)
        if not label:
            continue
        for last in range(first + 1, len(lines)):
            if re.match(r"\.LBB", lines[last]):
                break
            if re.search(rf"\b(b\.\w+|cbn?z\s+\w+,|tbn?z\s.*,)\s*{re.escape(label[1])}\b", lines[last]):
                loop = [x for x in lines[first + 1:last] if x.startswith("\t") and not x.startswith("\t.")]
                if count(loop, instruction) > count(best, instruction):
                    best = loop
                break
    if not best:
        sys.exit(f"no loop with {instruction} in {kernel} for {target}")
    return best


def count(loop, instruction):
    return sum(bool(re.match(rf"\s*{instruction}\b", line)) for line in loop)


def cycles(mca, core, loop):
    rounds = 500
    command = [mca, "--mtriple=aarch64-linux-gnu", f"--mcpu={core}", "--mattr=+bf16", f"--iterations={rounds}"]
    out = subprocess.run(command, input="\n".join(loop), check=True, stdout=subprocess.PIPE, text=True).stdout
    return int(re.search(r"Total Cycles:\s+(\d+)", out)[1]) / rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default="clang++-19")
    parser.add_argument("--mca", default="llvm-mca-19")
    parser.add_argument("--highway", default=str(ROOT / ".deps" / "highway"))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()

    text = assembly(arguments.compiler, arguments.highway)
    shares = {}
    for (target, kernel), instruction in KERNELS.items():
        loop = innermost_loop(text, target, kernel, instruction)
        independent = [INDEPENDENT[instruction].format(n) for n in range(SUMS)]
        for core in CORES:
            if instruction == "bfdot" and core in WITHOUT_BF16:
                continue
            least = cycles(arguments.mca, core, independent) / SUMS * count(loop, instruction)
            share = round(least / cycles(arguments.mca, core, loop), 3)
            shares[f"{kernel} {core}"] = share
            print(f"{kernel:<16}{core:<14}{100 * share:5.1f} % of the {instruction} peak")
    if arguments.update:
        RECORD.write_text(json.dumps(shares, indent=1) + "\n")
    if arguments.check:
        recorded = json.loads(RECORD.read_text())
        wrong = [f"{name}: {share}, recorded {recorded.get(name)}" for name, share in shares.items()
                 if share < recorded.get(name, 1) - TOLERANCE or ("neoverse" in name and share < LEAST_ON_NEOVERSE)]
        if wrong or set(recorded) != set(shares):
            sys.exit("slower than recorded, or other kernels: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
