"""Tasks beyond naming a picture's class: a found network becomes the backbone of a detector, a segmenter, ..."""
