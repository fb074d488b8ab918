"""PiT: three stages with pooling in between; the second space of TF-TAS."""
