"""Images and texts in one space of features, CL against NCL, by two losses: emoji with their names, digits with theirs.

Claim: the paper's appendix derives a multi-modal NCL (asymmetric non-negative matrix factorisation) and says that its
features are sparse and consistent as NCL's are; it measures nothing. Here is whether images and texts then still find
each other (recall@1, 5, 10 both ways), how sparse both sides are, and whether a feature belongs to both (modality
balance). clip is the symmetric InfoNCE of CLIP with a learned temperature, spectral the paper's asymmetric loss, and
mu10 that loss with rows cut to the length sqrt(10).
Cost: digits (--only digits), 18 runs of about 10 s on one CPU core; emoji, six runs a seed of 25 epochs of 6,138
pictures of 32 x 32, 3 minutes each on one CPU core, 8 where others use it too.
Run: nonneg reproduce multimodal

Emoji are split by base emoji: both vendors' pictures and all skin tones of a test emoji are on one side. Some emoji are
alike all the same: 16 of 1,019 test texts are also names of training emoji (dog, cat, ...), and 11 of 1,434 test
pictures are those of a training emoji at 32 pixels (flags). All methods train alike: AdamW, one seed
for both encoders, a bag of subwords learned from the training names.
"""

from dataclasses import replace
from functools import partial

from nonneg import losses, maps
from nonneg.experiments import Experiment
from nonneg.multimodal.run import PAIR_RECIPES

MAPS = {"cl": maps.identity, "ncl": maps.rep_relu}
LOSSES = {"clip": losses.clip, "spectral": losses.spectral, "mu10": partial(losses.spectral, mu=10.0)}
CALLED = {"mu10": "spectral with mu = 10"}
SETS = ("digits", "emoji")
WAYS = [(data, method, loss) for data in SETS for method in MAPS for loss in LOSSES]
EXPERIMENT = Experiment(
    runs={
        f"{data}-{method}-{loss}-s{seed}": replace(PAIR_RECIPES[data], map=MAPS[method], loss=LOSSES[loss], seed=seed)
        for seed in range(3)
        for data, method, loss in WAYS
    },
    methods={f"{data}-{m}-{loss}": f"{m.upper()}, {CALLED.get(loss, loss)}, {data}" for data, m, loss in WAYS},
    table=(
        "image_to_text@1",
        "image_to_text@5",
        "image_to_text@10",
        "text_to_image@1",
        "text_to_image@5",
        "text_to_image@10",
        "sparsity_images",
        "sparsity_texts",
        "pair_agreement",
        "shared_features",
        "class_consistency",
        "live_features",
    ),
    paper={},
    probe=None,
    tune=None,
    show=tuple(f"{data}-{way}-s0" for data in SETS for way in ("cl-clip", "ncl-clip", "ncl-spectral")),
)
