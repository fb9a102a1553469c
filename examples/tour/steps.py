"""The seven steps of the tour: text, code and what is drawn. Must not know how a page is made.

A step is a function: its docstring is the text, its body up to `return` is the code that the page shows and that runs, what it returns is drawn by the function
of pictures.py. So the page cannot say what the code does not do, and every claim is an assertion. Printed lines that begin with `here:` depend on the machine;
python/tests/test_tour.py compares all others.
"""

import json
import os
from pathlib import Path

import numpy as np
import pictures

import fovea

REAL = Path(__file__).resolve().parents[2] / "tests/data/real"

STEPS = []


def step(*helpers, draw):
    """Marks a step of the tour. The page shows `helpers` before its code."""

    def mark(run):
        STEPS.append((run, helpers, draw))
        return run

    return mark


# ---------------------------------------------------------------- 1


@step(draw=pictures.dictionary)
def dictionary():
    """A soft dictionary look-up

    A dictionary finds the one key that equals the query and returns its value. Attention compares the query with every key by a dot product, turns these scores into weights
    that sum to one (the softmax), and returns the weighted mean of all values. The query [1, 0] is the first of two keys here, so it gets mostly the first value,
    but not only. The scale says how strict the look-up is: with 0 all keys count the same, and as it grows the look-up becomes that of a dictionary. By default it is
    1/√dk; step 3 says why.
    """
    q = np.array([[[1, 0]]], np.float32)
    k = np.eye(2, dtype=np.float32)[None]
    v = np.array([[[1, 2], [3, 4]]], np.float32)

    out, weights = fovea.attention(q, k, v, return_weights=True)
    print("weights", weights[0, 0].round(4), " out", out[0, 0].round(4))

    first = np.exp(2**-0.5) / (np.exp(2**-0.5) + 1)  # the softmax of the scores 1/√2 and 0
    assert np.allclose(weights[0, 0], [first, 1 - first], atol=1e-6)
    assert np.allclose(out, weights @ v, atol=4e-5)

    scales = np.append(np.linspace(0, 16, 161), 2**-0.5)
    scales.sort()
    looked_up = [fovea.attention(q, k, v, scale=scale, return_weights=True) for scale in scales]
    assert np.allclose(looked_up[0][0], v.mean(axis=1), atol=4e-5)  # scale 0: the mean
    assert np.allclose(looked_up[-1][0], v[:, 0], atol=4e-5)  # scale 16: the value of the key
    return scales, np.array([w[0, 0] for _, w in looked_up]), np.array([o[0, 0] for o, _ in looked_up]), v


# ---------------------------------------------------------------- 2


def load(name):
    """Tensors and description of a captured attention problem: a .safetensors file is a JSON header and the bytes."""
    data = (REAL / f"{name}.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for key, entry in json.loads(data[8:start]).items():
        if key != "__metadata__":
            first, last = entry["data_offsets"]
            tensors[key] = np.frombuffer(data[start + first : start + last], np.float32).reshape(entry["shape"])
    return tensors, json.loads((REAL / "manifest.json").read_text())[name]


@step(draw=pictures.sentence)
def sentence():
    """The weights of a real sentence

    These queries, keys and values were captured in the first layer of all-MiniLM-L6-v2, a model that embeds sentences, while it read four of them
    ([tests/data/real](../tests/data/real/README.md); `load` reads the file). Each of the 12 heads has its own projections and looks for something else. One head reads the
    token before, whatever it is. One joins words that belong together, as *square* and *root*. One finds other places of the same word: the three *the* see each other. Fovea never makes these
    weights unless they are asked for; then each row sums to one, and what lies behind a sentence's end is zero.
    """
    problem, about = load("minilm_layer0")
    out, lse, weights = fovea.attention(
        problem["q"], problem["k"], problem["v"],
        kv_lengths=about["kv_lengths"], return_lse=True, return_weights=True)

    # as float64 has it, which the file holds beside the inputs
    largest_v = abs(problem["v"]).max()
    assert abs(out - problem["out"]).max() <= 1e-5 * largest_v
    assert np.allclose(lse, problem["lse"], rtol=1e-5, atol=1e-5)
    assert np.allclose(weights.sum(axis=-1), 1, atol=1e-5)
    assert all((weights[b, :, :, length:] == 0).all() for b, length in enumerate(about["kv_lengths"]))

    tokens, shown = about["tokens"][3], weights[3]
    previous = shown[2].diagonal(-1)  # weight of token i − 1 in row i
    square, root = tokens.index("square"), tokens.index("root")
    the = [i for i, token in enumerate(tokens) if token == "the"]
    print(f"head 2: the token before has at least {np.floor(100 * previous.min()):.0f} % of the weight")
    print(f"head 4: root looks at square with {100 * shown[4, root, square]:.0f} %, square at root with {100 * shown[4, square, root]:.0f} %")
    print(f"head 8: the three 'the' give each other {100 * shown[8][np.ix_(the, the)].sum(axis=1).mean():.0f} % of their weight")
    assert previous.min() > 0.9
    assert shown[4, root].argmax() == square and shown[4, square].argmax() == root
    assert all(set(np.argsort(shown[8, i])[-3:]) == set(the) for i in the)
    return shown, tokens, {2: "the token before", 4: "what belongs together", 8: "the same word"}


# ---------------------------------------------------------------- 3


@step(draw=pictures.scaling)
def scaling():
    """What the scale does to the softmax

    If the components of q and k are independent, with mean 0 and variance 1, then q·k is a sum of dk products of variance 1: its variance is dk. So scores grow like √dk, and
    because the softmax takes their exponentials, the largest soon has nearly all of the weight. Dividing by √dk gives every score the variance 1, whatever dk is. The entropy
    of the weights shows it: with the scale it stays at ln Tk − ½, which is what normal scores of variance 1 have among many keys; without it, it falls towards 0, a look-up of
    one key.
    """
    rng = np.random.default_rng(1)
    sizes, keys, samples = np.array([4, 16, 64, 256, 1024]), 256, 40_000
    variances, entropies = [], {None: [], 1.0: []}  # by scale; None is 1/√dk
    for dk in sizes:
        dots = np.concatenate([(rng.standard_normal((1000, dk)) * rng.standard_normal((1000, dk))).sum(axis=1)
                               for _ in range(samples // 1000)])
        variances.append(dots.var())
        # five standard errors: a sum of dk products of normals has the excess kurtosis 6/dk
        assert abs(variances[-1] / dk - 1) <= 5 * np.sqrt((2 + 6 / dk) / samples)

        q = rng.standard_normal((64, 1, 8, dk), dtype=np.float32)
        k = rng.standard_normal((64, 1, keys, dk), dtype=np.float32)
        for scale in entropies:
            _, p = fovea.attention(q, k, k, scale=scale, return_weights=True)
            entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1, dtype=np.float64)
            entropies[scale].append(entropy.mean())
            if scale is None and dk >= 16:  # five standard errors over the 64 batches, and what 256 keys differ from many
                assert abs(entropy.mean() - (np.log(keys) - 0.5)) <= 5 * entropy.mean(axis=(1, 2)).std() / 8 + 4 / keys
        print(f"dk {dk:4}  variance/dk {variances[-1] / dk:.2f}"
              f"  entropy {entropies[None][-1]:.2f} with the scale, {entropies[1.0][-1]:.2f} without")
    assert (np.diff(entropies[1.0]) < 0).all() and entropies[1.0][-1] < 0.1 * entropies[None][-1]
    return sizes, np.array(variances), entropies, keys


# ---------------------------------------------------------------- 4


@step(draw=pictures.masks)
def masks():
    """Masks

    A mask removes pairs of a query and a key before the softmax; the weights of the others still sum to one. A causal mask keeps a token from seeing later ones. With more
    keys than queries it must say where the queries stand: at the beginning (top-left), or at the end (bottom-right), as when text goes on after a cached past. A
    window keeps only the last few keys, lengths cut off the padding of a batch, a boolean mask removes anything, here what belongs to another document. Removed pairs
    have a weight of exactly zero, Fovea does not read what lies behind a length, and a row that sees nothing gives 0, with a logsumexp of −∞.
    (Coloured: weights; grey: removed.)
    """
    Tq, Tk, d = 8, 12, 16
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((1, 1, T, d), dtype=np.float32) for T in (Tq, Tk, Tk))
    i, j = np.arange(Tq)[:, None], np.arange(Tk)
    last = i + Tk - Tq  # the last key of query i, aligned bottom-right
    documents = (i >= 3) == (j >= 5)
    cases = {
        "no mask": ({}, j >= 0),
        'causal="top-left"': ({"causal": "top-left"}, j <= i),
        'causal="bottom-right"': ({"causal": "bottom-right"}, j <= last),
        "… with window=(2, 0)": ({"causal": "bottom-right", "window": (2, 0)}, (j <= last) & (j >= last - 2)),
        "kv_lengths=[9]": ({"kv_lengths": [9]}, j < 9),
        "mask=documents": ({"mask": documents}, documents),
    }
    pictures = {}
    for name, (options, visible) in cases.items():
        visible = np.broadcast_to(visible, (Tq, Tk))
        _, weights = fovea.attention(q, k, v, return_weights=True, **options)
        p = np.exp((q[0, 0] @ k[0, 0].T) / np.sqrt(d)) * visible
        assert np.allclose(weights[0, 0], p / p.sum(axis=1, keepdims=True), atol=1e-5)
        assert (weights[0, 0][~visible] == 0).all()
        print(f"{name:22} {visible.sum():2} of {Tq * Tk} pairs")
        pictures[name] = weights[0, 0], visible

    padded, nothing = k.copy(), np.zeros((Tq, Tk), bool)
    padded[:, :, 9:] = np.nan
    assert np.isfinite(fovea.attention(q, padded, padded, kv_lengths=[9])).all()
    out, lse = fovea.attention(q, k, v, mask=nothing, return_lse=True)
    assert (out == 0).all() and (lse == -np.inf).all()
    return (pictures,)


# ---------------------------------------------------------------- 5


def peak_growth(call):
    """By how many bytes the peak of this process's memory grows in call(), and what it returns. As Linux has it; None elsewhere."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        return None, call()

    def status(field):
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
        return int(line.split()[1]) * 1024

    Path("/proc/self/clear_refs").write_text("5")  # the peak starts over
    before = status("VmRSS")
    result = call()
    return status("VmHWM") - before, result


@step(peak_growth, draw=pictures.memory)
def memory():
    """128K tokens

    The textbook computes all scores, then all weights, then the output. The weights of T tokens are T² numbers for each head: at 128K tokens that is 64 GiB for one head in
    f32, and 2 TiB for 32 heads, while q, k, v and out of a head have 128 MiB. Fovea goes over the keys in blocks and keeps, for each query, the largest score so
    far, the sum of the exponentials and the output so far; when a larger score comes, it scales the latter two. So it needs a workspace that does not depend on T, and
    does the same multiplications. Below, 128 queries see 128K keys causally: the textbook's memory grows by their scores and weights, Fovea's at most by its workspace and
    output, for which memory that was freed earlier may do.
    """
    d = 64
    lengths = [2**e for e in range(10, 18)]
    matrix, tensors, workspace = [], [], []
    for T in lengths:
        x = np.broadcast_to(np.float32(0), (1, 1, T, d))  # a plan needs shapes, no data
        matrix.append(4 * T * T)
        tensors.append(4 * 4 * T * d)
        workspace.append(fovea.Plan(x, x, x, causal="top-left").workspace_bytes(threads=1))
        print(f"{T >> 10:4}K tokens: weights {matrix[-1] / 2**20:8.0f} MiB,  q k v out {tensors[-1] / 2**20:4.0f} MiB")
    print(f"here: workspace {workspace[-1] / 1024:.0f} KiB for any T")
    assert matrix[-1] == 64 << 30
    assert len(set(workspace[1:])) == 1 and workspace[-1] <= 256 << 10  # (up to 1K tokens it is less)

    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 1, T, d), dtype=np.float32) for T in (128, T, T))

    def textbook():
        s = q[0, 0] @ k[0, 0].T / np.float32(np.sqrt(d))
        s[np.arange(T) > np.arange(128)[:, None] + T - 128] = -np.inf
        p = np.exp(s - s.max(axis=1, keepdims=True))
        return p @ v[0, 0] / p.sum(axis=1, keepdims=True)

    streamed, out = peak_growth(lambda: fovea.attention(q, k, v, causal="bottom-right", threads=1))
    stored, expected = peak_growth(textbook)
    assert abs(out[0, 0] - expected).max() <= 2e-5 * abs(v).max()
    if streamed is not None:
        print(f"here: peak memory grows by {streamed / 2**10:.0f} KiB (Fovea) and {stored / 2**20:.0f} MiB (textbook)")
        assert streamed <= out.nbytes + (4 << 20) and stored >= 4 * 128 * T
    return lengths, matrix, tensors, workspace


# ---------------------------------------------------------------- 6


def attention_and_gradients(q, k, v, scale, dout):
    """out, and the gradients of Σ out·dout to the scores, q, k and v, in float64."""
    s = scale * q @ k.T
    p = np.exp(s - s.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    out = p @ v
    dv = p.T @ dout
    dp = dout @ v.T
    ds = p * (dp - (p * dp).sum(axis=1, keepdims=True))  # what goes through the softmax
    dq = scale * ds @ k
    dk = scale * ds.T @ q
    return out, ds, dq, dk, dv


def by_differences(function, x, h=1e-5):
    """The gradient of function() to x, which it reads: each element a little up, a little down."""
    gradient = np.empty_like(x)
    for index in np.ndindex(x.shape):
        kept = x[index]
        x[index] = kept + h
        up = function()
        x[index] = kept - h
        gradient[index] = (up - function()) / (2 * h)
        x[index] = kept
    return gradient


@step(attention_and_gradients, by_differences, draw=pictures.gradients)
def gradients():
    """How gradients vanish without the scale

    To learn, a change of the scores must change the output. The gradient to the score of a key is p·(g − mean of g): p is the weight of the key, g the gradient to it, and the mean
    is over the row, weighted by p. Where one weight is near 1 and the others near 0 this is near 0 for all keys: the softmax is saturated, and a small change of the scores
    changes nothing. Step 3 showed that unscaled scores lead there. So for the typical query the gradient vanishes as dk grows, and with the scale it does not. (These are a
    textbook's gradients in NumPy, checked by finite differences; the C++ reference has them with all options: [src/reference/gradients.cc](../src/reference/gradients.cc).)
    """
    rng = np.random.default_rng(4)
    q, k, v, dout = (rng.standard_normal(shape) for shape in ((3, 4), (7, 4), (7, 5), (3, 5)))
    out, _, *found = attention_and_gradients(q, k, v, 0.5, dout)
    for x, gradient in zip((q, k, v), found):
        expected = by_differences(lambda: (attention_and_gradients(q, k, v, 0.5, dout)[0] * dout).sum(), x)
        assert np.allclose(gradient, expected, rtol=0, atol=1e-8)
    ours = fovea.attention(*(x.astype(np.float32)[None] for x in (q, k, v)), scale=0.5)
    assert abs(ours[0] - out).max() <= 1e-5 * abs(v).max()

    sizes = [4, 16, 64, 256, 1024]
    norms = {"scale 1/√dk": [], "scale 1": []}
    for size in sizes:
        q, k, v, dout = (rng.standard_normal(shape) for shape in ((512, size), (64, size), (64, 32), (512, 32)))
        for rows, scale in zip(norms.values(), (size**-0.5, 1)):
            rows.append(np.linalg.norm(attention_and_gradients(q, k, v, scale, dout)[1], axis=1))
        print(f"dk {size:4}  median gradient {np.median(norms['scale 1/√dk'][-1]):.2f} with the scale,"
              f" {np.median(norms['scale 1'][-1]):.1g} without")
    scaled, unscaled = (np.median(rows, axis=1) for rows in norms.values())
    assert scaled.max() <= 1.5 * scaled.min()
    assert unscaled[-1] <= 1e-2 * scaled[-1] and (np.diff(unscaled[1:]) < 0).all()
    return sizes, norms


# ---------------------------------------------------------------- 7


@step(draw=pictures.merging)
def merging():
    """Logsumexp: attention in parts

    Beside the output, attention can return the logarithm of the sum of the exponentials of a query's scores, its logsumexp. Two results over different keys, each with its
    logsumexp, hold all that is needed for the result over both: each counts as much as its share exp(lse − lse of both) of the whole sum. So the keys may be
    split over blocks, threads, machines or a shared prefix and merged afterwards, in any number of parts; the streaming of step 5 is this law, block after block. Here the
    sentence of step 2 is cut in two, and the share of a half is the sum of the weights that it had in the whole.
    """
    problem, about = load("minilm_layer0")
    q, k, v = (problem[name][3:] for name in "qkv")  # the fourth sentence
    T = k.shape[2]
    whole, whole_lse, weights = fovea.attention(q, k, v, return_lse=True, return_weights=True)
    tolerance = 2e-5 * abs(v).max()  # two results in f32

    for parts in (2, 4, T):
        edges = np.linspace(0, T, parts + 1).astype(int)
        states = [fovea.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in zip(edges, edges[1:])]
        out, lse = fovea.merge(states)
        assert abs(out - whole).max() <= tolerance and np.allclose(lse, whole_lse, rtol=1e-5, atol=1e-5)
        print(f"{parts:2} parts: equal to the whole")

    halves = [fovea.attention(q, x, y, return_lse=True) for x, y in ((k[:, :, :14], v[:, :, :14]), (k[:, :, 14:], v[:, :, 14:]))]
    shares = [np.exp(lse - whole_lse) for _, lse in halves]
    assert np.allclose(shares[0] + shares[1], 1, atol=1e-5)
    assert np.allclose(shares[0], weights[..., :14].sum(axis=-1), atol=1e-5)
    by_hand = sum(share[..., None] * out for share, (out, _) in zip(shares, halves))
    assert abs(by_hand - whole).max() <= tolerance
    assert T == 28
    return shares[0][0, 4], about["tokens"][3]
