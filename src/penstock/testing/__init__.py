"""For users too: power-loss harness, fault points, test sources and sinks. May import everything."""
