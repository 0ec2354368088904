"""Images and their texts in one space of non-negative features."""
