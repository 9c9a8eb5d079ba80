"""Conformance tests of the seams, for our own guests and for yours."""
