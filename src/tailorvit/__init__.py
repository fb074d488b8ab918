"""TailorViT: tailor a vision transformer to your data and your size budget."""
