import sys

import engine.scripted

# Modules that are being merged still know it by its old place.
sys.modules[f"{__name__}.scripted_engine"] = engine.scripted
