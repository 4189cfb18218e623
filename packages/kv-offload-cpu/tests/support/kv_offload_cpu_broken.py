raise RuntimeError("no such luck")
