"""Ground floor: errors, the disk, fault points. Imports nothing else of Penstock."""
