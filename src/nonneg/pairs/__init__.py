"""Images with captions. One function per set, all with the same signature, each returning `Pairs`."""

from nonneg.pairs.captions import read as read_captions
from nonneg.pairs.dataset import Pairs, paired
from nonneg.pairs.digits import digits
from nonneg.pairs.emoji import emoji
from nonneg.pairs.folder import folder

__all__ = ["Pairs", "digits", "emoji", "folder", "paired", "read_captions"]
