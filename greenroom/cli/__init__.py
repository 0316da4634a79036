"""The `greenroom` command: parse, call the front door, print. What it decides about agents is only which task goes next."""
