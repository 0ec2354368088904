"""Our measures beside brute force, one CPU core, same features, same run.

    python benchmarks/measures.py          # a table
    python benchmarks/measures.py --json   # the same as JSON

SEPIN's brute force keeps the inner products and, for each feature, takes its rank-one part off, then exponentials,
row sums and logarithms anew, all vectorised: N^2 a feature. It is timed on a few features and scaled to all D; the
table says how many, and how far apart the two answers are on them.
"""

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from nonneg import metrics


def views(n: int, d: int, active: float) -> tuple[Any, Any]:
    """Two noisy views with unit rows and a share `active` of nonzeros, as CSR."""
    rng = np.random.default_rng(0)
    base = sparse.random_array((n, d), density=active / 0.8, format="csr", rng=rng)

    def view() -> Any:
        z = base.copy()
        z.data *= (1 + 0.3 * rng.random(z.nnz)) * (rng.random(z.nnz) < 0.8)
        z.eliminate_zeros()
        norm = np.sqrt(z.multiply(z).sum(axis=1))
        return sparse.csr_array(sparse.diags_array(1 / np.where(norm > 0, norm, 1)) @ z)

    return view(), view()


def timed(make: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    made = make()
    return made, time.perf_counter() - began


def sepin_by_brute_force(f: Any, g: Any, features: np.ndarray, temperature: float) -> tuple[np.ndarray, float, float]:
    """SEPIN of some features by recomputing the loss; also the seconds before the first and for each feature."""
    n = f.shape[0]
    work = np.empty((n, n))  # one buffer: allocating 200 MB for each feature would cost more than the arithmetic

    def loss(s: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
        np.subtract(s, np.multiply.outer(x / temperature, y, out=work), out=work)
        positive = work.diagonal().copy()
        np.exp(work, out=work)  # unit rows: nothing overflows, so no row maximum is needed
        e = work.diagonal()
        return float((np.log(e + (work.sum(axis=1) - e) / (n - 1)) - positive).mean())

    def prepare() -> tuple[np.ndarray, float]:
        s = (f @ g.T).toarray() / temperature
        return s, loss(s, np.zeros(n), np.zeros(n))

    (s, whole), before = timed(prepare)
    columns = [(f[:, [i]].toarray()[:, 0], g[:, [i]].toarray()[:, 0]) for i in features]
    found, seconds = timed(lambda: [loss(s, x, y) - whole for x, y in columns])
    return np.array(found), before, seconds / len(features)


def bench_sepin(*, n: int, d: int, active: float, sample: int, renormalise: bool) -> dict[str, Any]:
    f, g = views(n, d, active)
    ours, seconds = min((timed(lambda: metrics.sepin(f, g)) for _ in range(3)), key=lambda made: made[1])
    features = np.random.default_rng(1).choice(d, sample, replace=False)
    slow, before, each = sepin_by_brute_force(f, g, features, 1.0)
    row = {
        "measure": "sepin",
        "images": n,
        "features": d,
        "active": round(f.nnz / (n * d), 4),
        "ours_s": round(seconds, 3),
        "brute_force_s": round(before + each * d, 1),
        "brute_force_timed_on": sample,
        "ratio": round((before + each * d) / seconds, 1),
        "largest_difference": float(np.abs(ours[features] - slow).max()),
    }
    if renormalise:
        row["ours_renormalised_s"] = round(timed(lambda: metrics.sepin(f, g, renormalise=True))[1], 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--active", type=float, default=0.01, help="share of features that fire on an image")
    parser.add_argument("--sample", type=int, default=8, help="features on which the brute force is timed")
    parser.add_argument("--renormalise", action="store_true", help="time the re-normalised variant too")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    row = bench_sepin(
        n=args.images, d=args.features, active=args.active, sample=args.sample, renormalise=args.renormalise
    )
    if args.json:
        print(json.dumps([row], indent=1))
        return
    print(f"SEPIN, {row['images']} x {row['features']}, {row['active']:.1%} active, one core")
    print(f"  ours           {row['ours_s']:>9.2f} s  (best of 3)")
    print(f"  brute force    {row['brute_force_s']:>9.1f} s  (timed on {row['brute_force_timed_on']} features, scaled)")
    print(f"  ratio          {row['ratio']:>9.0f} x  largest difference {row['largest_difference']:.1e}")
    if "ours_renormalised_s" in row:
        print(f"  re-normalised  {row['ours_renormalised_s']:>9.1f} s  (ours, once)")


if __name__ == "__main__":
    main()
