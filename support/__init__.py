"""Files, processes, devices and provenance: what every command stands on."""
