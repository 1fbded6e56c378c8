"""Layers that contain a network: subnetworks, conditions, networks as units."""
