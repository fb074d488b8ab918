"""MLP-Mixer as a TailorViT family, and SynFlow as a TailorViT proxy."""
