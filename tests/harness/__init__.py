"""What the registry-driven tests compare ops with, in words that are not the ops' own."""
