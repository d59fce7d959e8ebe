"""Sources of the compiled back ends, one folder each; shipped with the package, compiled where they run."""
