"""Growth: whether a connector's work in the scheduler grows with what it should not depend on."""
