"""NumPy's breadth: functions that are composed of the primitives of `optree.ops`."""
