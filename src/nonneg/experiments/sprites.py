"""Sprites with known factors, CL against NCL: does one feature stand for one factor (MIG, with DCI and SAP beside it)?

Claim: MIG 0.037 (CL) against 0.065 (NCL) on dSprites. The paper names neither network nor augmentation for it.
Cost: ten runs of 5 epochs of 50,000 images at 32 pixels, about ten minutes each on one CPU core.
Run: nonneg reproduce sprites, then nonneg reproduce disentanglement

The sprites are rendered here on dSprites' grid (with `--data-root` the original file is read). A small net and gentle
crops: views that keep most of a sprite's place and size, which full crops and flips would wipe out of the features.
"""

from dataclasses import replace

from nonneg import maps
from nonneg.experiments import Experiment
from nonneg.run import RECIPES

BASE = replace(RECIPES["sprites"], epochs=5)
METHODS = {"cl": replace(BASE, map=maps.identity), "ncl": BASE}
EXPERIMENT = Experiment(
    runs={f"{name}-s{seed}": replace(run, seed=seed) for seed in range(5) for name, run in METHODS.items()},
    methods={"cl": "CL", "ncl": "NCL"},
    table=("linear_probe", "knn_z", "sparsity", "class_consistency", "live_features"),
    paper={},
    probe=None,
    tune=None,
    show=("cl-s0", "ncl-s0"),
)
