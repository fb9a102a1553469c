"""Records → medians, ratios and a Markdown text. Losses stand where wins do, in the same form."""

import collections
import json
import math
import statistics

OURS = "fovea"


def read(path):
    with open(path) as file:
        return [json.loads(line) for line in file if line.strip()]


def quartiles(values):
    """(lower, median, upper), between values where need be."""
    ordered = sorted(values)

    def at(share):
        place = share * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    return at(0.25), at(0.5), at(0.75)


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


class Results:
    """The rounds of one group, by (dtype, threads), workload and library."""

    def __init__(self, records, group="main"):
        self.records = records
        self.machine = next((r for r in records if r["kind"] == "machine"), {})
        self.times = collections.defaultdict(dict)  # (dtype, threads, workload, peer) → {round: seconds}
        self.noisy = collections.Counter()
        self.cases = {}
        for r in records:
            if r.get("group") != group:
                continue
            key = (r["dtype"], r["threads"], r["workload"], r["peer"])
            if r["kind"] == "round":
                self.times[key][r["round"]] = r["median_s"]
                self.noisy[key] += r["noisy"]
            elif r["kind"] == "case":
                self.cases[key] = r

    def settings(self):
        """(dtype, threads), in the order of the records."""
        return list(dict.fromkeys(key[:2] for key in self.times))

    def workloads(self, dtype, threads):
        return list(dict.fromkeys(key[2] for key in self.times if key[:2] == (dtype, threads)))

    def peers(self, dtype, threads, workload=None):
        """Other libraries than Fovea."""
        names = (key[3] for key in self.times if key[:2] == (dtype, threads) and workload in (None, key[2]))
        return [peer for peer in dict.fromkeys(names) if peer != OURS]

    def median(self, dtype, threads, workload, peer):
        times = self.times.get((dtype, threads, workload, peer))
        return quartiles(times.values())[1] if times else None

    def ratio(self, dtype, threads, workload, peer):
        """Quartiles of the library's time over Fovea's in the same round: above one Fovea is faster. None where either is missing."""
        ours, theirs = (self.times.get((dtype, threads, workload, name), {}) for name in (OURS, peer))
        shared = [theirs[n] / ours[n] for n in ours if n in theirs]
        return quartiles(shared) if shared else None

    def fastest(self, dtype, threads, workload):
        """The library, other than Fovea, with the least median; None without."""
        peers = self.peers(dtype, threads, workload)
        return min(peers, key=lambda peer: self.median(dtype, threads, workload, peer), default=None)

    def against_fastest(self, dtype, threads, workloads):
        """{workload: median ratio} to the fastest other library of each."""
        ratios = {}
        for workload in workloads:
            peer = self.fastest(dtype, threads, workload)
            ratio = peer and self.ratio(dtype, threads, workload, peer)
            if ratio:
                ratios[workload] = ratio[1]
        return ratios


def _ms(seconds):
    return "–" if seconds is None else f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def _ratio(quartile):
    """ "1.31 (1.28–1.35)"; with "slower" where Fovea loses."""
    if quartile is None:
        return "–"
    low, middle, high = quartile
    return f"{middle:.2f} ({low:.2f}–{high:.2f})" + (" slower" if middle < 1 else "")


def _row(cells):
    return "| " + " | ".join(cells) + " |"


def _table(results, dtype, threads):
    peers = results.peers(dtype, threads)
    lines = [_row(["", "Fovea ms", "fastest other", "ms", "ratio"] + peers), _row(["---"] * (5 + len(peers)))]
    for workload in results.workloads(dtype, threads):
        fastest = results.fastest(dtype, threads, workload)
        ours = _ms(results.median(dtype, threads, workload, OURS))
        noisy = results.noisy[dtype, threads, workload, OURS] * 2 > len(results.times.get((dtype, threads, workload, OURS), {}))
        cells = [workload, ours + (" noisy" if noisy else ""), fastest or "–"]
        if fastest:
            cells += [_ms(results.median(dtype, threads, workload, fastest)), _ratio(results.ratio(dtype, threads, workload, fastest))]
        else:
            cells += ["–", "–"]
        lines.append(_row(cells + [_ms(results.median(dtype, threads, workload, peer)) for peer in peers]))
    return lines


def _means(results, dtype, threads):
    lines = []
    names = results.workloads(dtype, threads)
    for title, chosen in (("P1 … P6", "P"), ("D1 … D3", "D"), ("X0 … X17", "X")):
        ratios = results.against_fastest(dtype, threads, [name for name in names if name[0] == chosen])
        if ratios:
            lost = [name for name, ratio in ratios.items() if ratio < 1]
            text = f"- {title}: geometric mean {geometric_mean(ratios.values()):.2f} over the fastest other library of each"
            lines.append(text + (f"; slower at {', '.join(lost)}" if lost else "; nowhere slower"))
    return lines


def _precisions(results):
    lines = []
    found = collections.defaultdict(set)
    for (dtype, _, _, peer), case in results.cases.items():
        tiles = ", AMX permitted" if case["amx_permitted"] else ""
        sums = f", sums in {case['accumulates']}" if case["accumulates"] != "f32" else ""
        found[peer, dtype].add(case["computed"] + sums + tiles)
    for peer in dict.fromkeys(peer for peer, _ in found):
        cells = ["; ".join(sorted(found[peer, dtype])) if (peer, dtype) in found else "–" for dtype in ("f32", "bf16", "f16")]
        lines.append(_row([peer, *cells]))
    return [_row(["rounds to, for tensors of", "f32", "bf16", "f16"]), _row(["---"] * 4), *lines] if lines else []


def _skipped(records):
    found = collections.OrderedDict()
    for r in records:
        if r["kind"] == "skip":
            place = f"{r['workload']} {r['dtype']}" if "workload" in r else "everywhere"
            places = found.setdefault((r["peer"], r["reason"]), [])
            if place not in places:
                places.append(place)
    lines = [_row([peer, reason.replace("|", "\\|"), ", ".join(places)]) for (peer, reason), places in found.items()]
    return [_row(["left out", "why", "where"]), _row(["---"] * 3), *lines] if lines else []


def _memory(records):
    results = Results(records, "long")
    lines = []
    for dtype, threads in results.settings():
        peers = [OURS, *results.peers(dtype, threads)]
        lines += [_row([f"{dtype}, {threads} thread(s)"] + [f"{peer}: ms, MiB" for peer in peers]), _row(["---"] * (1 + len(peers)))]
        for workload in results.workloads(dtype, threads):
            cells = []
            for peer in peers:
                case = results.cases.get((dtype, threads, workload, peer))
                cells.append(f"{_ms(results.median(dtype, threads, workload, peer))}, {case['peak_bytes'] / 2**20:.0f}" if case else "–")
            lines.append(_row([workload, *cells]))
    return lines


def markdown(records):
    results = Results(records)
    m = results.machine
    lines = [f"{m.get('cpu', 'unknown')}, {m.get('cores')} cores, {m.get('memory_gib')} GiB; {m.get('date', '')}, revision {m.get('revision')}.", ""]
    lines += [f"Flags: {m.get('flags', '')}.", ""]
    versions = {name: version for r in records if r["kind"] == "peer" for name, version in r["versions"].items()}
    lines += ["Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".", ""]
    lines += ["A ratio is the other library's time over Fovea's in the same round: the median of the rounds, and their quartiles. Below one Fovea is slower.", ""]
    for dtype, threads in results.settings():
        lines += [f"## {dtype}, {threads} thread{'s' if threads > 1 else ''}", "", *_table(results, dtype, threads), "", *_means(results, dtype, threads), ""]
    for title, part in (("Long sequences", _memory(records)), ("Precision", _precisions(results)), ("Left out", _skipped(records))):
        if part:
            lines += [f"## {title}", "", *part, ""]
    return "\n".join(lines)
