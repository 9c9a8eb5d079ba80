"""Who does what: the root drives, all ranks obey its orders, and they agree before they begin."""
