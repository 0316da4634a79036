"""Fail when a test of the real CLI was skipped, or when none ran: a green run must mean that they passed."""

import sys
import xml.etree.ElementTree as ET  # the file is our own

cases = [case for case in ET.parse(sys.argv[1]).iter("testcase") if ".e2e." in f".{case.get('classname', '')}."]
skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
if not cases or skipped:
    sys.exit(f"real-CLI tests: {len(cases)} found, skipped: {skipped or 'none'}")
print(f"real-CLI tests: {len(cases)} ran")
