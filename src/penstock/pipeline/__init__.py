"""What people use: a pipeline's definition, its plan, and the runner that carries it out."""
