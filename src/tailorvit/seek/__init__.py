"""Search of the space itself: S4 moves a space to neighbouring spaces along the accuracy gradient."""
