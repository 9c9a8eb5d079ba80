"""Scaling studies: how much faster more ranks are, how sure that is, and what holds them back."""
