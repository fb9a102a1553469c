"""Results against float64 on sampled rows, before anything is timed."""

import numpy as np

# Unit roundoffs: half of the distance of 1 to the next number.
ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
ROWS = 8
DEVIATIONS = 4  # of a sum of roundings that are independent: what it exceeds once in some ten thousand rows, and they are overestimated twofold


def sampled_rows(w):
    """(b, h, i), spread over all axes; the last row is among them."""
    rows = [(n % w.B, n * 7 % w.Hq, n * 2654435761 % w.Tq) for n in range(ROWS - 1)]
    return rows + [(w.B - 1, w.Hq - 1, w.Tq - 1)]


def reference_row(tensors, b, h, i, roundoff, sum_roundoff=ROUNDOFF["f32"]):
    """(out [dv], tolerance) of one row. The tolerance bounds the 2-norm of the error of a library that rounds as it likes to numbers of this
    roundoff u, and adds in numbers of roundoff ε:

        O = Σ p·v. Rounding scaled Q, the score s and the weight disturbs p_j by p_j·u·√(Σ(q·k·scale)² + s² + 1), independently of each
        other, which moves O by Σ p_j·(v_j − O) times that; O itself is rounded by u·O. Sums of n numbers are wrong by √n·ε·Σ|terms|
        (Higham and Mary, 2019), here n = Tk + dk.
    """
    w = tensors.workload
    k, v = tensors.caches[0]
    q = tensors.q[b, h, i].astype(np.float64)
    k, v = k[b, h // w.group].astype(np.float64), v[b, h // w.group].astype(np.float64)
    s = k @ q * w.scale
    noise = np.square(k * q * w.scale).sum(axis=1) + np.square(s) + 1
    if w.softcap:
        s = w.softcap * np.tanh(s / w.softcap)
    if w.alibi:
        s = s - tensors.slopes[h].astype(np.float64) * np.abs(w.position(i) - np.arange(w.Tk))
    if tensors.bias is not None:
        bias = np.broadcast_to(tensors.bias, (1, w.Hq, w.Tq, w.Tk))[0, h, i].astype(np.float64)
        s = s + bias
        noise += np.square(bias)
    s = np.where(w.visible(i), s, -np.inf)
    sink = tensors.sinks[h].astype(np.float64) if w.sinks else -np.inf
    most = max(s.max(), sink)
    if most == -np.inf:
        return np.zeros(w.dv), 0.0
    p = np.exp(s - most)
    p /= p.sum() + np.exp(sink - most)
    out = p @ v
    weights = np.square(p) * noise
    spread = np.square(v).T @ weights - 2 * out * (v.T @ weights) + np.square(out) * weights.sum()  # Σ (p·(v − O))²·noise
    independent = np.sqrt((np.maximum(spread, 0) + np.square(out)).sum()) * roundoff
    sums = np.sqrt(w.Tk + w.dk) * sum_roundoff * np.linalg.norm(p @ np.abs(v))
    return out, DEVIATIONS * (independent + ROUNDOFF[tensors.dtype] * np.linalg.norm(out) + sums)


def check(tensors, out, computed, accumulates="f32"):
    """out [B, Hq, Tq, dv]; computed: the type to which the library rounds on its way; accumulates: that of its sums. Returns the largest
    error and the largest share of a tolerance, and raises WrongResult where an error exceeds its own."""
    worst, share = 0.0, 0.0
    for b, h, i in sampled_rows(tensors.workload):
        expected, tolerance = reference_row(tensors, b, h, i, ROUNDOFF[computed], ROUNDOFF[accumulates])
        error = out[b, h, i].astype(np.float64) - expected
        norm = np.linalg.norm(error)
        if not norm <= tolerance:
            raise WrongResult(f"row {b},{h},{i} is wrong by {norm:.3g}, allowed are {tolerance:.3g}")
        worst, share = max(worst, float(np.abs(error).max())), max(share, float(norm / tolerance) if tolerance else 0.0)
    return {"max_err": worst, "share_of_tolerance": share}


class WrongResult(Exception):
    pass
