"""Image classification: data, augmentation, scoring."""
