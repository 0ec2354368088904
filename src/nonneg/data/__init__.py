"""One function per data set, all with the same signature, each returning a `Dataset`."""

from nonneg.data.arrays import arrays
from nonneg.data.cifar import cifar10, cifar100
from nonneg.data.dataset import Dataset
from nonneg.data.digits import digits
from nonneg.data.folder import folder
from nonneg.data.sprites import sprites
from nonneg.data.stream import Files

__all__ = ["Dataset", "Files", "arrays", "cifar10", "cifar100", "digits", "folder", "sprites"]
