"""What each step of the tour looks like: figures of the values that the step returns."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import PowerNorm

BLUE, ORANGE, GREY = "#1f5fa8", "#d9701a", "#8a8a8a"
plt.rcParams.update({"figure.constrained_layout.use": True, "font.size": 10, "axes.titlesize": 11})


def dictionary(scales, weights, outs, v):
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    left.plot(scales, weights[:, 0], color=BLUE, label="key [1, 0]")
    left.plot(scales, weights[:, 1], color=ORANGE, label="key [0, 1]")
    left.axvline(2**-0.5, color=GREY, linestyle=":")
    left.text(2**-0.5 + 0.3, 0.48, "1/√dk", color=GREY)
    left.set(xlabel="scale", ylabel="weight", ylim=(-0.02, 1.02), title="weights of the query [1, 0]")
    left.legend(loc="center right")
    right.plot(outs[:, 0], outs[:, 1], color=BLUE, zorder=1)
    right.scatter(v[0, :, 0], v[0, :, 1], color=BLUE, s=50, zorder=2)
    right.annotate("value [1, 2]", v[0, 0], (8, -4), textcoords="offset points")
    right.annotate("value [3, 4]", v[0, 1], (-8, -4), textcoords="offset points", ha="right")
    for scale, name in ((0, "scale 0: the mean"), (2**-0.5, "scale 1/√dk")):
        point = outs[np.argmin(abs(scales - scale))]
        right.scatter(*point, color=ORANGE, s=40, zorder=2)
        right.annotate(name, point, (10, -8), textcoords="offset points")
    right.set(xlim=(0.7, 3.3), ylim=(1.7, 4.3), title="where the output lies")
    return figure


def sentence(weights, tokens, heads):
    figure, axes = plt.subplots(1, len(heads), figsize=(13.5, 5.5), sharey=True)
    for axis, (head, name) in zip(axes, heads.items()):
        image = axis.imshow(weights[head], cmap="Blues", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
        axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=8)
        axis.set_yticks(range(len(tokens)), tokens, fontsize=8)
        axis.set_title(f"head {head}: {name}", fontsize=11)
        axis.set_xlabel("key")
    axes[0].set_ylabel("query")
    figure.colorbar(image, ax=axes, pad=0.015, label="weight (colours by its root)")
    return figure


def scaling(sizes, variances, entropies, keys):
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    left.loglog(sizes, sizes, color=GREY, linestyle=":", label="dk")
    left.loglog(sizes, variances, "o", color=ORANGE, label="q·k")
    left.loglog(sizes, variances / sizes, "o", color=BLUE, label="q·k/√dk")
    left.set(xlabel="dk", ylabel="variance", title="variance of a score")
    left.legend()
    right.semilogx(sizes, entropies[1.0], "o-", color=ORANGE, label="scale 1")
    right.semilogx(sizes, entropies[None], "o-", color=BLUE, label="scale 1/√dk")
    right.axhline(np.log(keys), color=GREY, linestyle=":")
    right.text(sizes[0], np.log(keys) + 0.12, f"ln {keys}: all keys alike", color=GREY)
    right.set(xlabel="dk", ylabel="entropy, nats", ylim=(0, 6.4), title="entropy of the weights")
    right.legend(loc="center right")
    for axis in (left, right):
        axis.set_xticks(sizes, sizes)
        axis.minorticks_off()
    return figure


def masks(pictures):
    figure, axes = plt.subplots(2, 3, figsize=(9.6, 5), sharex=True, sharey=True)
    colours = plt.get_cmap("Blues").copy()
    colours.set_bad("#e4e0d8")
    for axis, (name, (weights, visible)) in zip(axes.flat, pictures.items()):
        axis.imshow(np.ma.array(weights, mask=~visible), cmap=colours, vmin=0, vmax=0.6, interpolation="nearest")
        axis.set_title(name, fontsize=10)
        axis.set_xticks(range(0, weights.shape[1], 2))
        axis.set_yticks(range(0, weights.shape[0], 2))
    for axis in axes[1]:
        axis.set_xlabel("key j")
    for axis in axes[:, 0]:
        axis.set_ylabel("query i")
    return figure


def memory(lengths, matrix, tensors, workspace):
    figure, axis = plt.subplots(figsize=(7.2, 3.9))
    axis.loglog(lengths, matrix, "o-", color=ORANGE, base=2)
    axis.loglog(lengths, tensors, "o-", color=GREY, base=2)
    axis.loglog(lengths, workspace, "o-", color=BLUE, base=2)
    names = ("weights, 4·T²", "q, k, v, out", "Fovea's workspace")
    for name, values, colour in zip(names, (matrix, tensors, workspace), (ORANGE, GREY, BLUE)):
        axis.annotate(name, (lengths[-1], values[-1]), (8, -4), textcoords="offset points", color=colour)
    axis.set_xticks(lengths, [f"{T >> 10}K" for T in lengths])
    axis.set_yticks([2**e for e in (17, 20, 25, 30, 36)], ["128 KiB", "1 MiB", "32 MiB", "1 GiB", "64 GiB"])
    axis.set(xlabel="tokens T", xlim=(lengths[0] * 0.85, lengths[-1] * 5), title="bytes of one head, d = 64, f32")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(True, axis="y", color="#eeeeee")
    return figure


def gradients(sizes, norms):
    figure, axis = plt.subplots(figsize=(6.4, 3.6))
    for (name, rows), colour in zip(norms.items(), (BLUE, ORANGE)):
        low, middle, high = np.quantile(rows, (0.25, 0.5, 0.75), axis=1)
        axis.loglog(sizes, middle, "o-", color=colour, label=name)
        axis.fill_between(sizes, low, high, color=colour, alpha=0.2, linewidth=0)
    axis.set(xlabel="dk", ylabel="‖gradient to the scores‖", title="gradient of a query's scores: median and quartiles")
    axis.set_xticks(sizes, sizes)
    axis.minorticks_off()
    axis.legend()
    return figure


def merging(shares, tokens):
    figure, axis = plt.subplots(figsize=(9, 3.6))
    half = len(tokens) // 2
    axis.bar(range(len(tokens)), shares, color=BLUE, label=f"the first {half} keys")
    axis.bar(range(len(tokens)), 1 - shares, bottom=shares, color=ORANGE, label="the others")
    axis.axvline(half - 0.5, color="black", linewidth=1)
    axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=9)
    axis.set(ylabel="share", xlim=(-0.6, len(tokens) - 0.4), title="how much of each query's output comes from each half (head 4)")
    axis.legend(loc="lower left", framealpha=0.95)
    return figure
