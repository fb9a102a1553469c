"""Records → pictures, each as PNG and SVG."""

import os

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import precision
import report

INCHES = (9, 4.5)
COLOURS = plt.get_cmap("tab20").colors
plt.rcParams.update({"svg.hashsalt": "peers", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True})


def draw_all(records, folder):
    """The files that were written; what the records do not hold is not drawn."""
    os.makedirs(folder, exist_ok=True)
    files = []
    for name, figure in figures(records):
        for suffix in ("png", "svg"):
            path = os.path.join(folder, f"{name}.{suffix}")
            # Without the date, which alone would change the file.
            figure.savefig(path, dpi=150, bbox_inches="tight", metadata={"Date": None} if suffix == "svg" else None)
            files.append(path)
        plt.close(figure)
    return files


def figures(records):
    peaks = [r for r in records if r["kind"] == "bench"]
    if peaks:
        yield "share-of-peak", share_of_peak(peaks)
    results = report.Results(records)
    for dtype, threads in results.settings():
        if results.peers(dtype, threads) and any(key[3] == report.OURS for key in results.times):
            yield f"speed-up-{dtype}-{threads}", speed_up(results, dtype, threads)
    long = report.Results(records, "long")
    for dtype, threads in long.settings():
        yield "long-sequences", long_sequences(long, dtype, threads)
        break
    errors = precision.Results(records)
    for dtype in errors.dtypes():
        yield f"precision-{dtype}", error_against_keys(errors, dtype)


def place(machine):
    return f"{machine.get('cpu', '')}, {machine.get('date', '')[:10]}"


def share_of_peak(lines):
    """Bars for each workload, one for each instruction set: of multiply-adds in prefill, of reading memory in decode."""
    names, sets = (list(dict.fromkeys(line[key] for line in lines)) for key in ("workload", "isa"))
    figure, axes = plt.subplots(figsize=INCHES)
    width = 0.8 / len(sets)
    for n, isa in enumerate(sets):
        for line in lines:
            if line["isa"] == isa:
                share = line["share_of_read"] if line["workload"][0] == "D" else line["share_of_peak"]
                at = names.index(line["workload"]) + (n - (len(sets) - 1) / 2) * width
                axes.bar(at, 100 * (share or 0), width, color=COLOURS[2 * n], hatch="//" if line["noisy"] else None, edgecolor="white")
        axes.bar(0, 0, color=COLOURS[2 * n], label=isa)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(0, 100)
    axes.set_ylabel("% of the peak (D: of reading memory)")
    axes.set_title("Fovea: share of what the machine can do at best; hatched: noisy")
    axes.legend(ncols=len(sets), loc="upper right")
    return figure


def speed_up(results, dtype, threads):
    """A point for each library and workload, with quartiles of the rounds; logarithmic, so that losses are as long as wins."""
    names, peers = results.workloads(dtype, threads), results.peers(dtype, threads)
    figure, axes = plt.subplots(figsize=(max(INCHES[0], 0.55 * len(names)), INCHES[1]))
    for n, peer in enumerate(peers):
        points = []
        for at, workload in enumerate(names):
            ratio = results.ratio(dtype, threads, workload, peer)
            if ratio:
                points.append((at + (n - (len(peers) - 1) / 2) * 0.7 / len(peers), *ratio))
        if points:
            x, low, middle, high = zip(*points)
            spread = [[m - l for m, l in zip(middle, low)], [h - m for m, h in zip(middle, high)]]
            axes.errorbar(x, middle, spread, fmt="o", markersize=4, capsize=2, color=COLOURS[n % len(COLOURS)], label=peer)
    axes.axhline(1, color="black", linewidth=1)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xticks(range(len(names)), names, rotation=0 if len(names) < 12 else 60)
    axes.set_ylabel("time of the library / Fovea's\nbelow 1: Fovea is slower")
    axes.set_title(f"{dtype}, {threads} thread{'s' if threads > 1 else ''}; {place(results.machine)}")
    axes.legend(ncols=1, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def long_sequences(results, dtype, threads):
    """Time and memory beside the tensors against T: attention that stores scores, and attention that streams over keys."""
    figure, (times, memory) = plt.subplots(1, 2, figsize=INCHES)
    names = results.workloads(dtype, threads)
    for n, peer in enumerate([report.OURS, *results.peers(dtype, threads)]):
        cases = [results.cases[key] for name in names if (key := (dtype, threads, name, peer)) in results.cases]
        kind = "stores scores" if peer.endswith("unfused") else "streams"
        tokens = [case["Tk"] for case in cases]
        seconds = [results.median(dtype, threads, case["workload"], peer) for case in cases]
        times.plot(tokens, seconds, "o-", markersize=3, color=COLOURS[2 * n], label=f"{peer} ({kind})")
        memory.plot(tokens, [max(case["peak_bytes"], 1 << 10) / 2**20 for case in cases], "o-", markersize=3, color=COLOURS[2 * n], label=peer)
    tokens = [results.cases[key]["Tk"] for key in results.cases]
    if tokens:
        ends = [min(tokens), max(tokens)]
        memory.plot(ends, [T * T * 4 / 2**20 for T in ends], ":", color="grey", label="T² scores of 4 bytes")
    for axes, label in ((times, "seconds"), (memory, "MiB beside Q, K and V, output included")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value / 1024:g}K"))
        axes.set_xlabel("tokens T: one head, T queries, T keys, d = 64")
        axes.set_ylabel(label)
        axes.legend()
    figure.suptitle(f"{dtype}, {threads} thread{'s' if threads > 1 else ''}; {place(results.machine)}")
    figure.tight_layout()
    return figure


def error_against_keys(results, dtype):
    """The largest error over seeds and channels, a picture for each pattern, a line for each library."""
    figure, places = plt.subplots(1, len(precision.PATTERNS), figsize=INCHES, sharey=True)
    for axes, (pattern, title) in zip(places, precision.PATTERNS.items()):
        for n, peer in enumerate(results.peers(dtype)):
            curve = results.curve(dtype, pattern, peer)
            width = 2 if peer == report.OURS else 1
            # Libraries that share code err alike: each marker shows around the next one's.
            style = {"marker": "o", "fillstyle": "none", "markersize": 9 - n, "linewidth": width, "color": COLOURS[2 * n]}
            axes.plot(list(curve), [max(error, 1e-9) for error in curve.values()], label=peer, **style)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value / 1024:g}K"))
        axes.set_xlabel("keys of a row")
        axes.set_title(title, fontsize=8)
    places[0].set_ylabel("largest error of out, in units of max|v|")
    places[-1].legend()
    figure.suptitle(f"{dtype}, against float64; {place(results.machine)}")
    figure.tight_layout()
    return figure
