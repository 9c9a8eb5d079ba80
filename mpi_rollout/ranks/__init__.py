"""Who does what: the root drives, all ranks obey its orders, and they agree before they begin.

Imports `envs`, `policies`, `exchange` and what is below them.
"""
