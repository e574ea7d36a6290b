"""Other systems' names over ours."""
