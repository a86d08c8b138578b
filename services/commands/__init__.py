"""The commands of `quire` that talk to a running suite or to the model cache, one module each."""
