"""Hydra configuration files, shipped as package data."""
