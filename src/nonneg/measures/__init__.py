"""Everything we measure about features, each number with its definition. N images, D features, d backbone outputs.

Measures come in groups, a file for each question: `basic` is what every run is asked, the others need features alone,
and `on_images` holds those that need the model. An entry is its value, its definition and its parameters, and where it
has no value, `why`; `each` holds what the value sums up (one number a feature, a prefix, a factor), for the plots.
"""

from nonneg.measures.agreement import identifiability, monosemanticity
from nonneg.measures.basic import basic, classified, measure
from nonneg.measures.clusters import clusters
from nonneg.measures.disentanglement import factors, sepin
from nonneg.measures.entry import Entry, Features, entry, why_no_probe
from nonneg.measures.probabilities import probabilities
from nonneg.measures.retrieval import retrieval
from nonneg.measures.selection import selected
from nonneg.measures.spectrum import spectrum

LIGHT = (
    "basic",
    "sepin",
    "retrieval",
    "selection",
    "spectrum",
    "probabilities",
    "clusters",
    "monosemanticity",
    "identifiability",
    "factors",
    "ood",
)
HEAVY = ("probe", "tune", "corruptions")

__all__ = [
    "HEAVY",
    "LIGHT",
    "Entry",
    "Features",
    "basic",
    "classified",
    "clusters",
    "entry",
    "factors",
    "identifiability",
    "measure",
    "monosemanticity",
    "probabilities",
    "retrieval",
    "selected",
    "sepin",
    "spectrum",
    "why_no_probe",
]
