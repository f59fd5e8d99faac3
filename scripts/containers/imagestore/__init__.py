"""Container images, unpacked for overlay mounts in a store of each user's own. See command.py for how it is called."""
