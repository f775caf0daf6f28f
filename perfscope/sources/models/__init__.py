"""Models from configuration files and from presets."""
