"""The greenroom command: parse, call the front door, print."""
