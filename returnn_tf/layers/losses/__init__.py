"""The losses, one family per file. A new one is one new file with ``@register_loss``."""
