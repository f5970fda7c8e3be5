"""Records how PyYAML reads documents, as JSON lines: [document, what json.dumps
makes of it, or null where either refuses it]. Documents are read from standard
input, a JSON string a line."""
import json
import sys

import yaml

for line in sys.stdin:
    doc = json.loads(line)
    try:
        # What comes back is what a payload carries.
        answer = json.dumps(yaml.safe_load(doc), ensure_ascii=False, separators=(",", ":"))
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        answer = None
    print(json.dumps([doc, answer]))
