"""The contract of an op: its class, its application, its traits, its batching and its registration."""
