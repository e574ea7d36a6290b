"""Trees: what users build. Types, variables, nodes and tensors, and how NumPy's protocols reach them."""
