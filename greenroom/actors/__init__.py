"""The actors, and the loop that runs them. The only package that knows Pykka."""
