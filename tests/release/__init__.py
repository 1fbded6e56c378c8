"""The versions, the wheel, the recipes for containers."""
