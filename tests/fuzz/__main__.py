"""``python -m tests.fuzz [--cases 5000] [--first 0]``: one JSON line for each case that went wrong.

The last line counts. The same numbers are the same cases on every machine; those from 100,000 on
are of private checks, those from 200,000 on of adapted methods, audits and plans.
"""

import argparse
import json
import time
from collections import Counter

from tests.fuzz.cases import case, tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5_000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    began, entries, wrong = time.time(), Counter(), 0
    for number in range(options.first, options.first + options.cases):
        which = case(number)
        entries[which.entry] += 1
        told = tried(which)
        if told:
            wrong += 1
            shown = {k: repr(v)[:60] for k, v in which.options.items()}
            line = {"case": number, "entry": which.entry, "options": shown, "data": which.data}
            line |= {"relation": which.relation, "x64": which.wide, "wrong": told}
            print(json.dumps(line, ensure_ascii=False), flush=True)
    seconds = round(time.time() - began)
    print(json.dumps({"cases": options.cases, "wrong": wrong, "seconds": seconds,
                      "entries": dict(entries)}))  # fmt: skip


if __name__ == "__main__":
    main()
