"""ViT: depth, width, heads and MLP ratios are elastic; the spaces of AutoFormer, S4 and TF-TAS."""
