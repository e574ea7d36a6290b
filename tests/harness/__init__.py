"""Helpers of the tests: references that are independent of the ops, stand-ins, emulators and interpreters."""
