"""Times Fovea beside other libraries, in turns, and draws what came out.

    ./dev peers                                           # everything: an hour or two; bench/records and bench/pictures
    ./dev peers --workloads P1,D1 --dtypes f32 --threads 1 --rounds 3      # to build/peers.jsonl, build/peers.md, build/pictures
    python bench/peers report FILE                        # tables and pictures again, from records
    ./dev peers precision                                 # errors against the number of keys instead: precision.py
"""

import argparse
import json
import os
import subprocess
import sys

import machine
import precision
import report
import rounds
import workloads
import worker

ROOT = os.path.dirname(os.path.dirname(rounds.HERE))
LONG_TOKENS = [1024 << n for n in range(8)]  # … 128K
LONG_PEERS = ("fovea", "torch-flash", "torch-unfused")
ONLY_BF16 = ("avx512_amx", "avx512_bf16", "neon_bf16")  # instruction sets that run another one's code in f32
LONG_ROUNDS_UPTO = 16384  # beyond, a run takes seconds, and one round has to do


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(prog="peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="main,variants", help="sets (main, prefill, decode, variants), names and shapes as of `fovea bench`")
    parser.add_argument("--peers", default=",".join(rounds.all_peers()), help="libraries; fovea must be among them for ratios")
    parser.add_argument("--dtypes", default="f32,bf16,f16")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a library's turn")
    parser.add_argument("--rotate", type=float, default=200, metavar="MB", help="of copies of K and V that decode rotates over, at least")
    parser.add_argument("--long", type=int, default=LONG_TOKENS[-1], metavar="T", help="tokens of the longest sequence, 0: none")
    parser.add_argument("--fovea", metavar="PROGRAM", help="for shares of the peak: build/release/fovea")
    parser.add_argument("--record", action="store_true", help="to bench/records/peers-CPU.jsonl and bench/pictures, not to build/")
    parser.add_argument("--out", help="another file for the records; tables and pictures go beside it")
    options = parser.parse_args(arguments)
    options.rotate_bytes = options.rotate * 1e6
    options.peers, options.dtypes = options.peers.split(","), options.dtypes.split(",")
    unknown = [f"peer {peer}" for peer in options.peers if peer not in rounds.all_peers()]
    unknown += [f"type {dtype}" for dtype in options.dtypes if dtype not in workloads.BYTES]
    if unknown:
        parser.error(f"unknown {unknown[0]}")
    try:
        options.workloads = workloads.parse_list(options.workloads)
        options.threads = [int(threads) for threads in options.threads.split(",")]
    except ValueError as error:
        parser.error(str(error))
    return options


def measure(options, log):
    log.write({"kind": "machine", **machine.describe(ROOT)})
    chosen = {name: getattr(options, name) for name in ("rounds", "seconds", "rotate_bytes")}
    log.write({"kind": "options", **chosen})
    if options.fovea:
        shares_of_peak(options, log)
    for threads in options.threads:
        with rounds.Suite(options, threads, log.write, log.say) as suite:
            for dtype in options.dtypes:
                for workload in options.workloads:
                    suite.run(workload, dtype, options.rounds, options.seconds)
            if threads == options.threads[0]:
                for tokens in LONG_TOKENS:
                    if tokens <= options.long:
                        count = options.rounds if tokens <= LONG_ROUNDS_UPTO else 1
                        suite.run(workloads.parse(f"1,1,{tokens},64"), options.dtypes[0], count, options.seconds, LONG_PEERS, "long")


def shares_of_peak(options, log):
    """Lines of `fovea bench`, which measures the peak around each of its runs."""
    names = ";".join(workload.name for workload in options.workloads if workload.name[0] in "PDF")
    if not names:
        return
    command = [options.fovea, "bench", "--json", "--workloads", names, "--isa", "all", "--seconds", str(2 * options.seconds)]
    log.say(" ".join(command))
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        log.write({"kind": "skip", "peer": "fovea bench", "threads": 1, "reason": result.stderr.strip()[:300]})
    for line in result.stdout.splitlines():
        record = json.loads(line)
        if record["isa"] not in ONLY_BF16:
            log.write({"kind": "bench", **record})


def publish(path, pictures):
    """Tables beside the records, and pictures."""
    import drawing

    records = report.read(path)
    of_precision = any(record["kind"] == "precision" for record in records)
    text = precision.markdown(records) if of_precision else report.markdown(records)
    with open(os.path.splitext(path)[0] + ".md", "w") as file:
        file.write(text)
    print(text)
    for file in drawing.draw_all(records, pictures):
        print(file, file=sys.stderr)


def measure_precision(options):
    path = options.out or precision.record_file(ROOT)
    log = rounds.Log(path)
    log.write({"kind": "machine", **machine.describe(ROOT)})
    precision.measure(options, log, lambda peer: rounds.Process(peer, 1))
    log.close()
    return publish(path, pictures_beside(path) if options.out else os.path.join(ROOT, "bench", "pictures"))


def pictures_beside(path):
    return os.path.join(os.path.dirname(os.path.abspath(path)), "pictures")


def main(arguments):
    if arguments[:1] == ["worker"]:
        return worker.serve(arguments[1], int(arguments[2]))
    if arguments[:1] == ["report"]:
        if len(arguments) not in (2, 3):
            sys.exit("usage: peers report FILE [FOLDER]")
        return publish(arguments[1], arguments[2] if len(arguments) == 3 else pictures_beside(arguments[1]))
    if arguments[:1] == ["precision"]:
        return measure_precision(precision.parse_arguments(arguments[1:]))
    options = parse_arguments(arguments)
    path, pictures = options.out or os.path.join(ROOT, "build", "peers.jsonl"), None
    if options.record:
        path = os.path.join(ROOT, "bench", "records", f"peers-{machine.file_name(machine.cpu_name())}.jsonl")
        pictures = os.path.join(ROOT, "bench", "pictures")
    log = rounds.Log(path)
    measure(options, log)
    log.close()
    return publish(path, pictures or pictures_beside(path))


if __name__ == "__main__":
    main(sys.argv[1:])
