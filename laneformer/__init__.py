"""Laneformer: the architecture, its configuration and its checkpoint layout."""
